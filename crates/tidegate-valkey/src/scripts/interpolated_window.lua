-- Two counters, the older one weighted by how much of its window is still in view.
local interpolated_window = {}

function interpolated_window.numbers(header)
  local limit, period = unpack_from('>I4I7', header, 6)
  return { limit = limit, period = period }
end

function interpolated_window.fresh(_, n)
  return { last = n, previous = 0, current = 0 }
end

-- Previous and current count at `n`, and how far `n` is into its cell.
local function at(p, s, n)
  local cell, elapsed = divide(n, p.period)
  local passed = cell - divide(s.last, p.period)
  if passed == 0 then
    return s.previous, s.current, elapsed
  elseif passed == 1 then
    return s.current, 0, elapsed
  end
  return 0, 0, elapsed
end

function interpolated_window.advance(p, s, n)
  s.previous, s.current = at(p, s, n)
  s.last = n
end

function interpolated_window.limit(p)
  return p.limit
end

-- What is in view: the previous count's part rounded up.
local function in_view(p, previous, current, elapsed)
  local part, rest = multiply_divide(previous, p.period - elapsed, p.period, 0)
  return current + part + (rest > 0 and 1 or 0)
end

-- How far into a cell the previous count has faded to at most `room` units.
local function faded_at(p, previous, room)
  if previous == 0 then
    return 0
  end
  local view = multiply_divide(room, p.period, previous, 0)
  return p.period - min(view, p.period)
end

local function retry(p, previous, current, elapsed, cost)
  local room = p.limit - cost
  if room >= current then
    -- At the end of the cell the current count becomes the previous one, and still fits.
    return max(faded_at(p, previous, room - current) - elapsed, 0)
  end
  return longer(p.period - elapsed, faded_at(p, current, room))
end

local function reset(p, previous, current, elapsed)
  if current > 0 then
    return p.period - elapsed + p.period
  end
  return previous > 0 and p.period - elapsed or 0
end

function interpolated_window.assess(p, s, n, cost)
  local previous, current, elapsed = at(p, s, n)
  local used = in_view(p, previous, current, elapsed)
  local remaining = max(p.limit - used, 0)
  if cost > p.limit then
    return 3, remaining, 0, never, reset(p, previous, current, elapsed)
  elseif used + cost > p.limit then
    local wait = retry(p, previous, current, elapsed, cost)
    return 1, remaining, 0, wait, reset(p, previous, current, elapsed)
  end
  return 0, remaining - cost, 0, 0, reset(p, previous, current + cost, elapsed)
end

function interpolated_window.commit(p, s, n, cost)
  interpolated_window.advance(p, s, n)
  s.current = min(s.current + cost, u32_max)
end

function interpolated_window.fresh_after(p, s, n)
  return reset(p, at(p, s, n))
end

function interpolated_window.encode(_, s)
  return pack('>I4I4', s.previous, s.current)
end

function interpolated_window.decode(_, raw, from, last)
  local previous, current = unpack_from('>I4I4', raw, from)
  return { last = last, previous = previous, current = current }
end

algorithms[87] = interpolated_window
header_sizes.W = 16
