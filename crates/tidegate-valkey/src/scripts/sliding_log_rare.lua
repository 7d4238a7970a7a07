-- Sliding log: what few calls need.
log.rare()

function sliding_log.rebase(_, s, to)
  log.shift_back(s.log, s.last - to)
  s.last = to
end

function sliding_log.standing(p, s, n)
  local used = log.sum(s.log, n - p.period)
  return min(used, u32_max), max(p.limit - used, 0), reset(p, s, n)
end

function sliding_log.reprice(new, old, s, n, mode)
  sliding_log.advance(old, s, n)
  log.scale(s.log, change_used(mode, log.all(s.log), old.limit, new.limit), n)
end

function sliding_log.force(p, s, n, cost)
  sliding_log.advance(p, s, n)
  log.add(s.log, n, min(cost, max(2 * p.limit - log.all(s.log), 0)))
end

function sliding_log.refund(p, s, n, cost, charged_at)
  local cutoff, back = n - p.period, 0
  if not charged_at then
    back = log.take_newest(s.log, min(log.sum(s.log, cutoff), cost))
  elseif charged_at > cutoff then
    back = log.take_at(s.log, charged_at, cost)
  end
  if back > 0 then
    sliding_log.advance(p, s, n)
  end
  return back
end
