//! x
use crate::model::Config;
use crate::node::Node;
use crate::report::Problem;
pub(crate) fn lint(_c: &Config, _n: &Node, _p: &mut Vec<Problem>) {}
