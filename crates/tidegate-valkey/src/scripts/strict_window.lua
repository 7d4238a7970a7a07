-- Never more than N in any window of length P: charges are counted in cells, and a cell leaves the
-- sum only when all of it is P old. The times in the log are numbers of cells.
local strict_window = {}

function strict_window.numbers(header)
  local limit, period, cells = unpack_from('>I4I7I2', header, 6)
  local cell = divide_up(period, cells)
  return { limit = limit, cell = cell, span = divide_up(period, cell) + 1 }
end

function strict_window.fresh(_, n)
  return { last = n, log = log.new() }
end

local function index(p, n)
  return (divide(n, p.cell))
end

-- The newest cell that is no longer summed.
local function cutoff(p, n)
  return index(p, n) - p.span
end

function strict_window.advance(p, s, n)
  log.trim(s.log, cutoff(p, n))
  s.last = n
end

function strict_window.limit(p)
  return p.limit
end

local function leaves_in(p, cell, n)
  return max((cell + p.span) * p.cell - n, 0)
end

local function reset(p, s, n)
  local newest = log.newest(s.log, cutoff(p, n))
  return newest and leaves_in(p, newest, n) or 0
end

function strict_window.assess(p, s, n, cost)
  local used = log.sum(s.log, cutoff(p, n))
  local remaining = max(p.limit - used, 0)
  if cost > p.limit then
    return 3, remaining, 0, never, reset(p, s, n)
  end
  local excess = used + cost - p.limit
  if excess > 0 then
    local freed = log.leaves(s.log, cutoff(p, n), excess)
    return 1, remaining, 0, freed and leaves_in(p, freed, n) or never, reset(p, s, n)
  end
  local own = cost == 0 and 0 or leaves_in(p, index(p, n), n)
  return 0, remaining - cost, 0, 0, max(reset(p, s, n), own)
end

function strict_window.commit(p, s, n, cost)
  strict_window.advance(p, s, n)
  log.add(s.log, index(p, n), cost)
end

strict_window.read = log.read
strict_window.fresh_after = reset

function strict_window.save(key, prefix, s, micros)
  log.save(key, prefix, s.log, micros)
end

function strict_window.decode(_, raw, at, last, key)
  return { last = last, log = log.decode(raw, at, key) }
end

algorithms[83] = strict_window
header_sizes.S = 18
