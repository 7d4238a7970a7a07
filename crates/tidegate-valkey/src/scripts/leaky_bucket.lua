-- A paced queue: the deficit is the queue, and what exceeds `burst` is the caller's wait.
local leaky_bucket = setmetatable({}, { __index = tank })

function leaky_bucket.numbers(header)
  local r, t, _, capacity, burst, longest = unpack_from('>I4I7I4I4I4I7', header, 6)
  t = r > 0 and t or 1
  -- The longest wait is written one longer, so that 0 stands for none.
  return { r = r, t = t, capacity = capacity, burst = burst, longest = longest - 1 }
end

function leaky_bucket.fresh(_, n)
  return { last = n, w = 0, f = 0 }
end

-- The deficit up to which a caller is let in that waits no longer than that.
local function allowance(p, high, low)
  local w, f = refill(p, high, low)
  w = w + p.burst
  if is_above(w, f, p.capacity, 0) then
    return p.capacity, 0
  end
  return w, f
end

local function own_allowance(p)
  if p.longest >= 0 then
    return allowance(p, 0, p.longest)
  elseif p.capacity * p.t < 4503599627370496 * p.r then
    -- Even the last place is nowhere near the longest wait that there is.
    return p.capacity, 0
  end
  return allowance(p, 31, 281474975710655)
end

local function weigh(p, s, n, cost, allowed_w, allowed_f)
  local w, f = deficit(p, s, n)
  local left = above(p, allowed_w, allowed_f, w, f)
  if is_above(cost, 0, allowed_w, allowed_f) then
    return 3, left, 0, never, tank.wait(p, w, f)
  end
  local charged = w + cost
  if is_above(charged, f, allowed_w, allowed_f) then
    local retry = tank.wait(p, above(p, charged, f, allowed_w, allowed_f))
    return 1, left, 0, retry, tank.wait(p, w, f)
  end
  left = above(p, allowed_w, allowed_f, charged, f)
  -- A question of cost 0 takes no place, so it has no turn to wait for.
  local delay = cost == 0 and 0 or tank.wait(p, above(p, charged, f, p.burst, 0))
  return 0, left, delay, 0, tank.wait(p, charged, f)
end

function leaky_bucket.assess(p, s, n, cost)
  return weigh(p, s, n, cost, own_allowance(p))
end

function leaky_bucket.fresh_after(p, s, n)
  return tank.wait(p, deficit(p, s, n))
end

algorithms[81] = leaky_bucket
header_sizes.Q = 35
