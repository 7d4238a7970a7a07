-- Tanks: what few calls need.

function tank.rebase(_, s, to)
  s.last = to
end

function tank.force(p, s, n, cost)
  tank.advance(p, s, n)
  local w, f = s.w + cost, s.f
  if is_above(w, f, 2 * p.capacity, 0) then
    w, f = 2 * p.capacity, 0
  end
  if is_above(w, f, s.w, s.f) then
    s.w, s.f = w, f
  end
end

function tank.refund(p, s, n, cost)
  local w, f = deficit(p, s, n)
  local back = min(cost, f > 0 and w + 1 or w)
  if back > 0 then
    s.w, s.f = above(p, w, f, cost, 0)
    s.last = n
  end
  return back
end

-- The same share of the new capacity as of the old, rounded up.
local function proportional(new, old, w, f)
  if old.capacity == 0 then
    return 0, 0
  end
  local units = big.add(big.multiply(big.of(w), big.of(old.t)), big.of(f))
  local factor = big.multiply(big.of(new.capacity), big.of(new.t))
  local divisor = big.multiply(big.of(old.capacity), big.of(old.t))
  local scaled, rest = big.divide(big.multiply(units, factor), divisor)
  if #rest > 0 then
    scaled = big.add(scaled, { 1 })
  end
  local whole, fraction = big.divide(scaled, big.of(new.t))
  return big.number(whole), big.number(fraction)
end

-- What is missing under `old` numbers, as it is under `new` ones: at most all.
function tank.adopt(new, old, w, f, mode, fresh_w, fresh_f)
  if mode == 0 then
    local rest
    f, rest = multiply_divide(f, new.t, old.t, 0)
    if rest > 0 then
      f = f + 1
    end
    if f == new.t then
      w, f = w + 1, 0
    end
  elseif mode == 1 then
    w, f = proportional(new, old, w, f)
  elseif mode == 2 then
    local left_w, left_f = above(old, old.capacity, 0, w, f)
    left_f = multiply_divide(left_f, new.t, old.t, 0)
    w, f = above(new, new.capacity, 0, left_w, left_f)
  else
    w, f = fresh_w, fresh_f
  end
  if is_above(w, f, new.capacity, 0) then
    return new.capacity, 0
  end
  return w, f
end
