-- So many failures, then bans that grow. An attempt charges its failure in advance.
local lockout = {}

function lockout.numbers(header)
  local p = {}
  local cap
  p.failures, p.period, p.ban, p.factor, p.max_ban, p.jitter, p.forget_after, cap, p.long =
    unpack_from('>I4I7I7I4I7I7I7I4I7', header, 6)
  -- The long cap is written one higher, so that 0 stands for none.
  p.cap = cap > 0 and cap - 1 or nil
  return p
end

function lockout.fresh(_, n)
  return {
    last = n,
    failures = log.new(),
    long = log.new(),
    bans = 0,
    banned_until = 0,
    failed_at = 0,
  }
end

local function failures(p, s, n)
  return log.sum(s.failures, n - p.period)
end

local function long_cutoff(p, n)
  return p.cap and n - p.long or n
end

local function forgotten_at(p, s)
  return max(s.failed_at, s.banned_until) + p.forget_after
end

-- How many bans still count.
local function bans(p, s, n)
  return n >= forgotten_at(p, s) and 0 or s.bans
end

-- How long the ban after so many before it lasts.
local function ban(p, before, jitter)
  local length = p.ban
  if p.factor > 1 then
    for _ = 1, before do
      if length >= p.max_ban then
        break
      end
      length = length * p.factor
    end
  end
  return min(length, p.max_ban) + fmod(jitter, p.jitter + 1)
end

-- When the long cap lets another attempt through.
local function long_wait(p, s, n)
  if not p.cap then
    return 0
  elseif p.cap == 0 then
    return never
  end
  local excess = log.sum(s.long, long_cutoff(p, n)) + 1 - p.cap
  if excess <= 0 then
    return 0
  end
  local freed = log.leaves(s.long, long_cutoff(p, n), excess)
  return freed and max(freed + p.long - n, 0) or never
end

local function remaining(p, s, n)
  if s.banned_until > n then
    return 0
  end
  local own = max(p.failures - failures(p, s, n), 0)
  if p.cap then
    own = min(own, max(p.cap - log.sum(s.long, long_cutoff(p, n)), 0))
  end
  return own
end

local function reset(p, s, n)
  local newest = log.newest(s.failures, n - p.period)
  local left = newest and max(newest + p.period - n, 0) or 0
  return max(left, s.banned_until - n)
end

function lockout.advance(p, s, n)
  s.bans = bans(p, s, n)
  log.trim(s.failures, n - p.period)
  log.trim(s.long, long_cutoff(p, n))
  s.last = n
end

function lockout.limit(p)
  return p.failures
end

function lockout.assess(p, s, n, jitter)
  local left, full = remaining(p, s, n), reset(p, s, n)
  if p.failures == 0 or p.cap == 0 then
    return 3, left, 0, never, full
  end
  local long = long_wait(p, s, n)
  if s.banned_until > n then
    return 2, 0, 0, max(s.banned_until - n, long), full
  elseif long > 0 then
    return 1, left, 0, long, full
  elseif failures(p, s, n) + 1 >= p.failures then
    return 0, 0, 0, 0, ban(p, bans(p, s, n), jitter)
  end
  return 0, max(left - 1, 0), 0, 0, p.period
end

function lockout.commit(p, s, n, jitter)
  lockout.advance(p, s, n)
  if p.cap then
    log.add(s.long, n, 1)
  end
  s.failed_at = n
  if failures(p, s, n) + 1 < p.failures then
    log.add(s.failures, n, 1)
  else
    s.banned_until = n + ban(p, s.bans, jitter)
    s.bans = min(s.bans + 1, u32_max)
    s.failures = log.new()
  end
end

function lockout.fresh_after(p, s, n)
  local counted = bans(p, s, n) > 0 and forgotten_at(p, s) - n or 0
  local newest = log.newest(s.long, long_cutoff(p, n))
  local long = newest and p.cap and max(newest + p.long - n, 0) or 0
  return max(reset(p, s, n), counted, long, 0)
end

function lockout.encode(_, s)
  return pack('>I4I7I7', s.bans, s.banned_until, s.failed_at)
    .. log.encode(s.failures)
    .. log.encode(s.long)
end

function lockout.decode(_, raw, at, last)
  local s = { last = last }
  s.bans, s.banned_until, s.failed_at = unpack_from('>I4I7I7', raw, at)
  s.failures = log.decode(raw, at + 18)
  s.long = log.decode(raw, at + 18 + log.size(s.failures))
  return s
end

algorithms[88] = lockout
header_sizes.X = 59
