-- Never more than N in any window of length P: every charge is remembered until it is P old.
local sliding_log = {}

function sliding_log.numbers(header)
  local limit, period = unpack_from('>I4I7', header, 6)
  return { limit = limit, period = period }
end

function sliding_log.fresh(_, n)
  return { last = n, log = log.new() }
end

function sliding_log.advance(p, s, n)
  log.trim(s.log, n - p.period)
  s.last = n
end

function sliding_log.limit(p)
  return p.limit
end

local function reset(p, s, n)
  local newest = log.newest(s.log, n - p.period)
  return newest and max(newest + p.period - n, 0) or 0
end

function sliding_log.assess(p, s, n, cost)
  local used = log.sum(s.log, n - p.period)
  local remaining = max(p.limit - used, 0)
  if cost > p.limit then
    return 3, remaining, 0, never, reset(p, s, n)
  end
  local excess = used + cost - p.limit
  if excess > 0 then
    local freed = log.leaves(s.log, n - p.period, excess)
    local retry = freed and max(freed + p.period - n, 0) or never
    return 1, remaining, 0, retry, reset(p, s, n)
  end
  return 0, remaining - cost, 0, 0, cost == 0 and reset(p, s, n) or p.period
end

function sliding_log.commit(p, s, n, cost)
  sliding_log.advance(p, s, n)
  log.add(s.log, n, cost)
end

sliding_log.read = log.read
sliding_log.fresh_after = reset

function sliding_log.save(key, prefix, s, micros)
  log.save(key, prefix, s.log, micros)
end

function sliding_log.decode(_, raw, at, last, key)
  return { last = last, log = log.decode(raw, at, key) }
end

algorithms[76] = sliding_log
header_sizes.L = 16
