-- A count per window: of the clock ('F'), since first use ('U'), or of a calendar ('K').
local fixed_window = {}

function fixed_window.numbers(header)
  local limit, period = unpack_from('>I4I7', header, 6)
  return { limit = limit, period = period, align = byte(header) }
end

function fixed_window.fresh(_, n)
  return { last = n, used = 0, age = 0, ending = never }
end

-- The windows of a calendar that a caller brought, as pairs of a first point in time and the first
-- point after: nothing if `n` is in none of them.
local function calendar_window(windows, n)
  for at = 1, #windows, 14 do
    local start, ending = unpack_from('>I7I7', windows, at)
    if start <= n and n < ending then
      return start, ending
    end
  end
end

-- First point of the window of `n`, and the first point after it.
local function bounds(p, s, n)
  if p.align == 70 then
    local start = n - fmod(n, p.period)
    return start, start + p.period
  elseif p.align == 85 then
    local age = n - s.last + s.age
    if age < p.period and s.used > 0 then
      return n - age, n + p.period - age
    end
    return n, n + p.period
  end
  return calendar_window(p.windows, n)
end

local function used_at(p, s, n)
  if p.align == 85 then
    return n - s.last + s.age < p.period and s.used or 0
  elseif p.align == 75 then
    return n < s.ending and s.used or 0
  end
  return s.last >= n - fmod(n, p.period) and s.used or 0
end

-- The end of a calendar's window is written down where the calendar is known.
local function set(p, s, n, used)
  local start, ending = n, never
  if p.align ~= 75 or p.windows then
    start, ending = bounds(p, s, n)
  end
  s.age = p.align == 85 and n - start or 0
  s.last, s.used, s.ending = n, used, p.align == 75 and ending or never
end

fixed_window.window_at = calendar_window

function fixed_window.limit(p)
  return p.limit
end

local function reset(used, left)
  return used > 0 and left or 0
end

function fixed_window.assess(p, s, n, cost)
  local used = used_at(p, s, n)
  local _, ending = bounds(p, s, n)
  local left, remaining = ending - n, max(p.limit - used, 0)
  if cost > p.limit then
    return 3, remaining, 0, never, reset(used, left)
  elseif used + cost > p.limit then
    return 1, remaining, 0, left, reset(used, left)
  end
  return 0, remaining - cost, 0, 0, reset(used + cost, left)
end

function fixed_window.commit(p, s, n, cost)
  set(p, s, n, used_at(p, s, n) + cost)
end

function fixed_window.fresh_after(p, s, n)
  local used = used_at(p, s, n)
  if used == 0 then
    return 0
  end
  if s.ending ~= never then
    return s.ending - n
  end
  local _, ending = bounds(p, s, n)
  return ending - n
end

function fixed_window.encode(p, s)
  if p.align == 85 then
    return pack('>I4I7', s.used, s.age)
  elseif p.align == 75 then
    local ending = s.ending
    if ending == never then
      local _
      _, ending = bounds(p, s, s.last)
    end
    return pack('>I4I7', s.used, ending)
  end
  return pack('>I4', s.used)
end

function fixed_window.decode(p, raw, at, last)
  local used, extra = unpack_from('>I4', raw, at), 0
  if p.align ~= 70 then
    extra = unpack_from('>I7', raw, at + 4)
  end
  return {
    last = last,
    used = used,
    age = p.align == 85 and extra or 0,
    ending = p.align == 75 and extra or never,
  }
end

algorithms[70], algorithms[85], algorithms[75] = fixed_window, fixed_window, fixed_window
header_sizes.F, header_sizes.U, header_sizes.K = 16, 16, 24
