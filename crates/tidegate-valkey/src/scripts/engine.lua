-- Operations: the same on every algorithm. Up to a second back a clock jitters, and time stands
-- still at the latest moment a key has seen; further back it was corrected, and the key's stored
-- times move with it.
local jitter = 1000000

-- What is asked with, in the context's third byte.
local peeks, punishes, watches = 1, 2, 4

local function has(flags, flag)
  return flags % (2 * flag) >= flag
end

-- Reads a key's entry and brings it to the key's own time and to the current numbers.
-- `header` holds the numbers; `context` is an operation's letter, how a change treats what was
-- used, flags, and windows of a calendar.
local function open(key, header, context)
  local a = algorithms[byte(header)]
  local e = {
    key = key,
    header = header,
    a = a,
    p = a.numbers(header),
    flags = byte(context, 3) - 48,
    blocked = 0,
    n = now,
    lag = 0,
  }
  local windows = #context > 3 and sub(context, 4) or nil
  e.p.windows = windows
  local raw
  if a.paged then
    raw = read_range(key, 0, 2047)
  else
    raw = read(key)
  end
  if not raw or raw == '' then
    e.s = a.fresh(e.p, now)
  else
    e.is_kept = true
    -- A small letter says that the end of a block follows.
    local letter = sub(raw, 1, 1)
    local is_blocked = byte(letter) > 96
    local size = header_sizes[upper(letter)]
    local kept_header = upper(letter) .. sub(raw, 2, size)
    local last, at = unpack_from('>I7', raw, size + 1)
    if is_blocked then
      e.blocked, at = unpack_from('>I7', raw, at)
    end
    local old = kept_header == header and e.p or a.numbers(kept_header)
    e.s = a.decode(old, raw, at, last, key)
    local behind = last - now
    if behind > jitter then
      a.rebase(old, e.s, now)
      e.blocked = max(e.blocked - behind, 0)
      e.is_rebased, e.is_dirty = true, true
    elseif behind > 0 then
      e.n, e.lag = last, behind
    end
    if kept_header ~= header then
      local is_newer = unpack_from('>I4', kept_header, 2) > unpack_from('>I4', header, 2)
      if is_newer and (byte(kept_header) ~= 75 or windows) then
        -- Another process has newer numbers already; going back would forgive with each turn.
        e.p, e.header = old, kept_header
        old.windows = windows
      elseif upper(letter) .. sub(kept_header, 6) ~= sub(header, 1, 1) .. sub(header, 6) then
        a.reprice(e.p, old, e.s, e.n, byte(context, 2) - 48)
        e.is_dirty = true
      end
    end
  end
  if byte(e.header) == 75 then
    for _, at in ipairs({ e.n, max(e.blocked, e.n) }) do
      local _, ending = calendar_window(windows, at)
      if not ending then
        e.needs = at
      elseif at == e.s.last then
        -- What a corrected clock or other numbers have left open.
        e.s.ending = min(e.s.ending, ending)
      end
    end
  end
  return e
end

-- How long a key must be kept: until it equals a fresh one even for a call whose clock is behind.
local function lifetime_of(e)
  local n = max(now - jitter, 0, e.s.last)
  local fresh = max(e.a.fresh_after(e.p, e.s, n), e.blocked - n)
  return longer(fresh, n + jitter - now)
end

-- Writes what has changed.
local function close(e)
  if e.is_forgotten then
    if e.is_kept then
      forget(e.key)
    end
    return
  elseif not e.is_changed and not (e.is_dirty and e.is_kept) then
    return
  end
  local prefix = e.header .. pack('>I7', e.s.last)
  if e.blocked > 0 then
    prefix = string.lower(sub(prefix, 1, 1)) .. sub(prefix, 2) .. pack('>I7', e.blocked)
  end
  if e.a.save then
    e.a.save(e.key, prefix, e.s, lifetime_of(e))
  else
    write(e.key, prefix .. e.a.encode(e.p, e.s), lifetime_of(e))
  end
end

local function told(wait)
  return wait == never and -1 or wait
end

-- A wait from the key's own time on, as one from the caller's.
local function from_caller(e, wait)
  return wait == 0 and 0 or longer(wait, e.lag)
end

local function code(e, verdict)
  return e.is_rebased and verdict + 8 or verdict
end

local function decision(e, cost, verdict, remaining, delay, retry, reset)
  return pack(
    '>BI4I4I4i7i7i7I7',
    code(e, verdict),
    e.a.limit(e.p),
    remaining,
    cost,
    told(from_caller(e, delay)),
    told(from_caller(e, retry)),
    told(from_caller(e, reset)),
    e.n
  )
end

local function plain(e)
  return pack('>B', code(e, 0))
end

-- What a demand would mean, with a block on top: that denies until it ends, and longer if the
-- limit itself would then.
local function decide(e, cost, assess, x, y, z)
  local verdict, remaining, delay, retry, reset = assess(e.p, e.s, e.n, x, y, z)
  if e.blocked > e.n then
    local left = e.blocked - e.n
    local _, _, _, later = assess(e.p, e.s, e.blocked, x, y, z)
    local _, _, full = e.a.standing(e.p, e.s, e.n)
    verdict = verdict == 3 and 3 or 2
    remaining, delay, retry, reset = 0, 0, longer(later, left), max(full, left)
  end
  return decision(e, cost, verdict, remaining, delay, retry, reset), verdict
end

-- A block that is over is not kept.
local function lapse(e)
  if e.blocked <= e.n then
    e.blocked = 0
  end
end

-- Charges what was found to fit. A cost of 0 changes nothing.
local function charge(e, op, x, y)
  if (op == 't' and x == 0) or (op == 'q' and y == 0) then
    return nil
  end
  local grant, is_changed = e.a.commit(e.p, e.s, e.n, x, y)
  if is_changed ~= false then
    e.is_changed = true
    lapse(e)
  end
  return grant
end

-- The cost of a demand, as it is told.
local function cost_of(op, x, y)
  if op == 't' then
    return x
  end
  return op == 'q' and y or 1
end

-- Charges a denied demand of units into debt, where the limit punishes who does not wait.
local function punish(e, op, x, answer, verdict)
  if op == 't' and verdict == 1 and has(e.flags, punishes) then
    e.a.force(e.p, e.s, e.n, x)
    e.is_changed = true
    return decide(e, x, e.a.assess, x)
  end
  return answer, verdict
end

local function told_lease(lease)
  return lease and pack('>I4I7I7', lease[1], lease[2], lease[3]) or ''
end

local function take(e, op, x, y)
  local answer, verdict = decide(e, cost_of(op, x, y), e.a.assess, x, y)
  if has(e.flags, peeks) then
    return answer
  elseif verdict == 0 then
    return answer .. told_lease(charge(e, op, x, y))
  end
  return (punish(e, op, x, answer, verdict))
end

local function refund(e, cost, charged_at)
  local back = e.a.refund(e.p, e.s, e.n, cost, charged_at)
  e.is_changed = back > 0
  return pack('>BI4', code(e, 0), back)
end

local function force(e, cost)
  if cost > 0 then
    e.a.force(e.p, e.s, e.n, cost)
    e.is_changed = true
    lapse(e)
  end
  local _, remaining, reset = e.a.standing(e.p, e.s, e.n)
  if e.blocked > e.n then
    remaining, reset = 0, max(reset, e.blocked - e.n)
  end
  return decision(e, cost, 0, remaining, 0, 0, reset)
end

local function state(e)
  local used, remaining, reset = e.a.standing(e.p, e.s, e.n)
  local left = max(e.blocked - e.n, 0)
  if left > 0 then
    remaining, reset, left = 0, max(reset, left), left + e.lag
  end
  reset = told(from_caller(e, reset))
  local limit, last = e.a.limit(e.p), e.s.last
  local leases = e.a.leases and e.a.leases(e.s, e.n, told_lease) or ''
  return pack('>BI4I4I4i7I7I7', code(e, 0), limit, used, remaining, reset, left, last) .. leases
end

local function reset(e)
  if e.a.start_over then
    e.is_changed = e.a.start_over(e.p, e.s)
  else
    e.s = e.a.fresh(e.p, e.n)
  end
  e.blocked = 0
  e.is_forgotten = not e.is_changed
  return plain(e)
end

local function reserve(e, cost, high, low)
  local assess = e.a.assess_reservation or e.a.assess
  local answer, verdict = decide(e, cost, assess, cost, high, low)
  if verdict == 0 then
    charge(e, 't', cost)
  end
  return answer
end

local function block(e, period)
  if period > 0 then
    -- The state must have seen this moment, for a step of the clock to be noticed later.
    e.a.advance(e.p, e.s, e.n)
    e.blocked, e.is_changed = e.n + period, true
  end
  return plain(e)
end

local function settle(e, reserved, charged_at, actual)
  if actual < reserved then
    return refund(e, reserved - actual, charged_at)
  end
  force(e, actual - reserved)
  return pack('>BI4', code(e, 0), 0)
end

local function operate(e, op, x, y, z)
  if op == 't' then
    return take(e, op, tonumber(x))
  elseif op == 'q' then
    return take(e, op, x, tonumber(y))
  elseif op == 'a' then
    return take(e, op, tonumber(x))
  elseif op == 'n' then
    local lease = e.a.renew(e.p, e.s, e.n, x)
    e.is_changed = lease ~= nil
    return plain(e) .. told_lease(lease)
  elseif op == 'l' then
    e.is_changed = e.a.release(e.p, e.s, e.n, x)
    return pack('>BB', code(e, 0), e.is_changed and 1 or 0)
  elseif op == 'y' then
    e.is_changed = e.a.success(e.p, e.s, e.n)
    return plain(e)
  elseif op == 'u' then
    -- With nothing left this asks for 1, whose denial says when something will be.
    local _, remaining = e.a.standing(e.p, e.s, e.n)
    return take(e, 't', min(tonumber(x), max(remaining, 1)))
  elseif op == 'r' then
    return reserve(e, tonumber(x), tonumber(y), tonumber(z))
  elseif op == 's' then
    return settle(e, tonumber(x), tonumber(y), tonumber(z))
  elseif op == 'g' then
    return refund(e, tonumber(x))
  elseif op == 'f' then
    return force(e, tonumber(x))
  elseif op == 'z' then
    return reset(e)
  elseif op == 'b' then
    return block(e, tonumber(x))
  elseif op == 'c' then
    e.is_changed = e.blocked > 0
    e.blocked = 0
    return plain(e)
  end
  return state(e)
end

-- A calendar's window that the caller has not brought: it computes it and asks again.
local function window_needed(at)
  return pack('>BI7', 64, at)
end
