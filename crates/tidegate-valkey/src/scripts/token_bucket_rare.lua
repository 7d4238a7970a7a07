-- Token bucket: what few calls need.
tank.rare()

-- Lends what will have come back by then, down to one capacity of debt.
function token_bucket.assess_reservation(p, s, n, cost, high, low)
  local w, f = refill(p, high, low)
  w = w + p.capacity
  if is_above(w, f, 2 * p.capacity, 0) then
    w, f = 2 * p.capacity, 0
  end
  return weigh(p, s, n, cost, w, f)
end

function token_bucket.standing(p, s, n)
  local w, f = deficit(p, s, n)
  return f > 0 and w + 1 or w, remaining(p, w, f), tank.wait(p, w, f)
end

function token_bucket.reprice(new, old, s, n, mode)
  local w, f = deficit(old, s, n)
  local fresh, was = token_bucket.fresh(new, n), token_bucket.fresh(old, n)
  if w == was.w and f == was.f then
    -- What equals a key that was never seen stays so: it may have been forgotten.
    w, f = fresh.w, fresh.f
  else
    w, f = tank.adopt(new, old, w, f, mode, fresh.w, fresh.f)
  end
  s.last, s.w, s.f = n, w, f
end
