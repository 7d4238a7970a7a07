-- What refills continuously: token buckets and paced queues. What is missing to full is kept as
-- whole tokens `w` and a fraction `f` of `t`-ths of a token; a microsecond brings `r` of those.
local tank = {}

local function is_above(w, f, other_w, other_f)
  return w > other_w or (w == other_w and f > other_f)
end

-- How much (w, f) is above the other, at least nothing.
local function above(p, w, f, other_w, other_f)
  w, f = w - other_w, f - other_f
  if f < 0 then
    w, f = w - 1, f + p.t
  end
  if w < 0 then
    return 0, 0
  end
  return w, f
end

-- What comes back in `high` * 2^48 + `low` microseconds.
local function refill(p, high, low)
  local w, f = multiply_divide(p.r, low, p.t, 0)
  if high > 0 then
    local more, rest = multiply_divide(p.r * high, 281474976710656, p.t, 0)
    w, f = w + more, f + rest
    if f >= p.t then
      w, f = w + 1, f - p.t
    end
  end
  return w, f
end

function tank.drained(p, w, f, elapsed)
  if (w == 0 and f == 0) or elapsed == 0 then
    return w, f
  end
  if p.r * elapsed >= two_53 and w * p.t + f < two_53 then
    return 0, 0
  end
  local back, rest = multiply_divide(p.r, elapsed, p.t, 0)
  return above(p, w, f, back, rest)
end

local function deficit(p, s, n)
  return tank.drained(p, s.w, s.f, n - s.last)
end

-- How long until so much has come back.
function tank.wait(p, w, f)
  if w == 0 and f == 0 then
    return 0
  elseif p.r == 0 then
    return never
  end
  local micros, rest = multiply_divide(w, p.t, p.r, f)
  if rest > 0 then
    micros = micros + 1
  end
  return longer(micros, 0)
end

function tank.rebase(_, s, to)
  s.last = to
end

function tank.advance(p, s, n)
  s.w, s.f = deficit(p, s, n)
  s.last = n
end

function tank.limit(p)
  return p.capacity
end

function tank.commit(p, s, n, cost)
  tank.advance(p, s, n)
  s.w = s.w + cost
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

function tank.encode(_, s)
  return pack('>I4I7', s.w, s.f)
end

function tank.decode(_, raw, at, last)
  local w, f = unpack_from('>I4I7', raw, at)
  return { last = last, w = w, f = f }
end
