-- Interval bucket: what few calls need.

function interval_bucket.rebase(_, s, to)
  s.last = to
end

function interval_bucket.standing(p, s, n)
  local used, into = at(p, s, n)
  local reset = refill_in(p, into or 0, intervals(p, used))
  return used, max(p.capacity - used, 0), reset
end

function interval_bucket.reprice(new, old, s, n, mode)
  local used, into = at(old, s, n)
  local was = interval_bucket.fresh(old, n)
  if mode == 3 or (used == was.used and into == was.into) then
    -- What equals a key that was never seen stays so: it may have been forgotten.
    local fresh = interval_bucket.fresh(new, n)
    s.last, s.used, s.into = n, fresh.used, fresh.into
    return
  end
  used = min(change_used(mode, used, old.capacity, new.capacity), new.capacity)
  -- What was full and is not any more has begun a grid, if it had none.
  if used > 0 then
    into = into or 0
  end
  s.last, s.used, s.into = n, used, into
end

function interval_bucket.force(p, s, n, cost)
  interval_bucket.advance(p, s, n)
  s.used = max(s.used, min(s.used + cost, 2 * p.capacity))
  s.into = s.into or 0
end

function interval_bucket.refund(p, s, n, cost)
  local used, into = at(p, s, n)
  local back = min(cost, used)
  if back > 0 then
    s.last, s.used, s.into = n, used - back, into
  end
  return back
end
