-- A burst of up to `capacity`, then a steady rate.
local token_bucket = setmetatable({}, { __index = tank })

function token_bucket.numbers(header)
  local r, t, _, capacity = unpack_from('>I4I7I4I4', header, 6)
  local p = { r = r, t = r > 0 and t or 1, capacity = capacity, since = 0, initial_w = 0 }
  if byte(header) == 67 then
    -- 'C': keys first seen at `since` lack some tokens.
    p.initial_w, p.since = unpack_from('>I4I7', header, 25)
  end
  return p
end

function token_bucket.fresh(p, n)
  local w, f = tank.drained(p, p.initial_w, 0, max(n - p.since, 0))
  return { last = n, w = w, f = f }
end

local function remaining(p, w, f)
  return (above(p, p.capacity, 0, w, f))
end

local function weigh(p, s, n, cost, allowed_w, allowed_f)
  local w, f = deficit(p, s, n)
  if cost > p.capacity then
    return 3, remaining(p, w, f), 0, never, tank.wait(p, w, f)
  end
  local charged = w + cost
  if is_above(charged, f, allowed_w, allowed_f) then
    local retry = tank.wait(p, above(p, charged, f, allowed_w, allowed_f))
    return 1, remaining(p, w, f), 0, retry, tank.wait(p, w, f)
  end
  local delay = tank.wait(p, above(p, charged, f, p.capacity, 0))
  return 0, remaining(p, charged, f), delay, 0, tank.wait(p, charged, f)
end

function token_bucket.assess(p, s, n, cost)
  return weigh(p, s, n, cost, p.capacity, 0)
end

function token_bucket.fresh_after(p, s, n)
  local w, f = deficit(p, s, n)
  local new = token_bucket.fresh(p, n)
  return max(tank.wait(p, w, f), tank.wait(p, new.w, new.f))
end

algorithms[66], algorithms[67] = token_bucket, token_bucket
header_sizes.B, header_sizes.C = 24, 35
