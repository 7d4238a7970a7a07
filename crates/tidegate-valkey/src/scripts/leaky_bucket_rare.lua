-- Leaky bucket: what few calls need.
tank.rare()

-- A place in the leaky_bucket is a reservation already; the caller may accept a shorter wait.
function leaky_bucket.assess_reservation(p, s, n, cost, high, low)
  if p.longest >= 0 and (high > 1 or high * 281474976710656 + low > p.longest) then
    high, low = 0, p.longest
  end
  return weigh(p, s, n, cost, allowance(p, high, low))
end

function leaky_bucket.standing(p, s, n)
  local w, f = deficit(p, s, n)
  local allowed_w, allowed_f = own_allowance(p)
  local left = above(p, allowed_w, allowed_f, w, f)
  return f > 0 and w + 1 or w, left, tank.wait(p, w, f)
end

function leaky_bucket.reprice(new, old, s, n, mode)
  local w, f = deficit(old, s, n)
  if w > 0 or f > 0 then
    w, f = tank.adopt(new, old, w, f, mode, 0, 0)
  end
  s.last, s.w, s.f = n, w, f
end
