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

function tank.encode(_, s)
  return pack('>I4I7', s.w, s.f)
end

function tank.decode(_, raw, at, last)
  local w, f = unpack_from('>I4I7', raw, at)
  return { last = last, w = w, f = f }
end
