//! The arithmetic of the scripts beside that of 128 bits.

use redis::Value;
use tidegate_testkit::{Flavor, Server};

/// Random whole numbers below 2^`bits`, of all magnitudes.
fn draw(rng: &mut fastrand::Rng, bits: u32) -> u64 {
    let bits = rng.u32(..=bits);
    rng.u64(..=(1 << bits) - 1)
}

#[test]
fn products_beyond_what_a_double_holds_are_divided_exactly() {
    const CASES: usize = 20_000;
    let script = concat!(
        include_str!("../scripts/numbers.lua"),
        "local answers = {}
        for i = 1, #ARGV, 4 do
            local q, r = multiply_divide(
                tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
            )
            answers[#answers + 1] = q == never and -1 or q
            answers[#answers + 1] = r
        end
        return answers"
    );
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let server = Server::start(Flavor::Valkey9);
    let mut connection = server.connection();
    let mut seen = [0, 0, 0];
    for _ in 0..CASES / 100 {
        let cases: Vec<[u64; 4]> = (0..100)
            .map(|_| {
                let c = draw(&mut rng, 49).max(1);
                let mut a = draw(&mut rng, 52).min((1 << 52) - 1);
                // Often just at a border: a whole multiple, one more, one less.
                if rng.u32(..4) == 0 {
                    a = c * draw(&mut rng, 3) + rng.u64(..2);
                }
                [
                    a.min((1 << 52) - 1),
                    draw(&mut rng, 52),
                    c,
                    draw(&mut rng, 49),
                ]
            })
            .collect();
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(0);
        for number in cases.iter().flatten() {
            command.arg(*number);
        }
        let Value::Array(answers) = command.query(&mut connection).unwrap() else {
            panic!("no list of answers");
        };
        for ([a, b, c, add], answer) in cases.iter().zip(answers.chunks(2)) {
            let product = u128::from(*a) * u128::from(*b) + u128::from(*add);
            let (quotient, rest) = (product / u128::from(*c), product % u128::from(*c));
            let expected = if quotient < 1 << 53 {
                seen[usize::from(product >= 1 << 53)] += 1;
                [quotient as i64, rest as i64]
            } else {
                seen[2] += 1;
                [-1, 0]
            };
            assert_eq!(
                answer,
                expected.map(Value::Int),
                "seed {seed}: ({a} * {b} + {add}) / {c}"
            );
        }
    }
    assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
}
