-- Operations: the same on every algorithm. Up to a second back a clock jitters, and time stands
-- still at the latest moment a key has seen; further back it was corrected, and the key's stored
-- times move with it.
--
-- Every function that is made costs time, used or not. So the parts that few calls need are made
-- when they are needed: those of an algorithm by its `rare`.
local jitter = 1000000

-- What is asked with, in the context's third byte.
local peeks, punishes, watches = 1, 2, 4

local function has(flags, flag)
  return flags % (2 * flag) >= flag
end

-- Brings what was read of a key to the key's own time and to the caller's numbers.
local function restore(e, raw, change)
  local a, header = e.a, e.header
  e.is_kept = true
  -- A small letter says that the end of a block follows.
  local letter = sub(raw, 1, 1)
  local is_blocked = byte(letter) > 96
  local kept_header = sub(raw, 1, header_sizes[upper(letter)])
  local last, at = unpack_from('>I7', raw, #kept_header + 1)
  if is_blocked then
    e.blocked, at = unpack_from('>I7', raw, at)
    kept_header = upper(letter) .. sub(kept_header, 2)
  end
  local own = e.p
  local old = kept_header == header and own or a.numbers(kept_header)
  local s = a.decode(old, raw, at, last, e.key)
  e.s = s
  local behind = last - now
  if behind > jitter then
    a.rare()
    a.rebase(old, s, now)
    e.blocked = max(e.blocked - behind, 0)
    e.is_rebased, e.is_dirty = true, true
  elseif behind > 0 then
    e.n, e.lag = last, behind
  end
  if old ~= own then
    local is_newer = unpack_from('>I4', kept_header, 2) > unpack_from('>I4', header, 2)
    if is_newer and (byte(kept_header) ~= 75 or own.windows) then
      -- Another process has newer numbers already; going back would forgive with each turn.
      e.p, e.header = old, kept_header
      old.windows = own.windows
    elseif byte(kept_header) ~= byte(header) or sub(kept_header, 6) ~= sub(header, 6) then
      a.rare()
      a.reprice(own, old, s, e.n, change)
      e.is_dirty = true
    end
  end
end

-- Reads a key's entry. `header` holds the numbers; `context` is an operation's letter, how a change
-- treats what was used, flags, and windows of a calendar.
local function open(key, header, context)
  local a = algorithms[byte(header)]
  local _, change, flags = byte(context, 1, 3)
  local e = {
    key = key,
    header = header,
    a = a,
    p = a.numbers(header),
    s = false,
    flags = flags - 48,
    blocked = 0,
    n = now,
    lag = 0,
    is_kept = false,
    is_changed = false,
    is_dirty = false,
    is_rebased = false,
  }
  local raw = (a.read or read)(key)
  if byte(header) == 75 then
    e.p.windows = sub(context, 4)
  end
  if raw and raw ~= '' then
    restore(e, raw, change - 48)
  else
    e.s = a.fresh(e.p, now)
  end
  if byte(e.header) == 75 then
    for _, at in ipairs({ e.n, max(e.blocked, e.n) }) do
      local _, ending = a.window_at(e.p.windows, at)
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

-- Writes what has changed.
local function close(e)
  local a, s = e.a, e.s
  if e.is_forgotten then
    if e.is_kept then
      forget(e.key)
    end
    return
  elseif not e.is_changed and not (e.is_dirty and e.is_kept) then
    return
  end
  -- Until the key equals a fresh one even for a call whose clock is behind.
  local n = max(now - jitter, 0, s.last)
  local fresh = max(a.fresh_after(e.p, s, n), e.blocked - n)
  local micros = longer(fresh, n + jitter - now)
  local prefix = e.header .. pack('>I7', s.last)
  if e.blocked > 0 then
    prefix = string.lower(sub(prefix, 1, 1)) .. sub(prefix, 2) .. pack('>I7', e.blocked)
  end
  if a.save then
    a.save(e.key, prefix, s, micros)
  else
    write(e.key, prefix .. a.encode(e.p, s), micros)
  end
end

-- A decision as it is told: waits from the caller's time on, and below 0 for never.
local function decision(e, cost, verdict, remaining, delay, retry, reset)
  if e.lag > 0 then
    delay = delay > 0 and longer(delay, e.lag) or 0
    retry = retry > 0 and longer(retry, e.lag) or 0
    reset = reset > 0 and longer(reset, e.lag) or 0
  end
  return pack(
    '>BI4I4I4i7i7i7I7',
    e.is_rebased and verdict + 8 or verdict,
    e.a.limit(e.p),
    remaining,
    cost,
    delay == never and -1 or delay,
    retry == never and -1 or retry,
    reset == never and -1 or reset,
    e.n
  )
end

-- What a demand would mean, with a block on top: that denies until it ends, and longer if the
-- limit itself would then.
local function decide(e, cost, assess, x, y, z)
  local verdict, remaining, delay, retry, reset = assess(e.p, e.s, e.n, x, y, z)
  if e.blocked > e.n then
    local left = e.blocked - e.n
    local _, _, _, later = assess(e.p, e.s, e.blocked, x, y, z)
    e.a.rare()
    local _, _, full = e.a.standing(e.p, e.s, e.n)
    verdict = verdict == 3 and 3 or 2
    remaining, delay, retry, reset = 0, 0, longer(later, left), max(full, left)
  end
  return decision(e, cost, verdict, remaining, delay, retry, reset), verdict
end

-- Charges what was found to fit; returns a lease as it is told. A cost of 0 changes nothing.
local function charge(e, op, x, y)
  if (op == 't' and x == 0) or (op == 'q' and y == 0) then
    return ''
  end
  local lease, is_changed = e.a.commit(e.p, e.s, e.n, x, y)
  if is_changed ~= false then
    e.is_changed = true
    if e.blocked <= e.n then
      -- A block that is over is not kept.
      e.blocked = 0
    end
  end
  return lease or ''
end

-- What a demand would mean, and what it means to be denied where that is punished: to be charged
-- all the same, into debt.
local function judge(e, op, x, y)
  local cost = op == 't' and x or op == 'q' and y or 1
  local answer, verdict = decide(e, cost, e.a.assess, x, y)
  if op == 't' and verdict == 1 and has(e.flags, punishes) and not has(e.flags, watches) then
    e.a.rare()
    e.a.force(e.p, e.s, e.n, x)
    e.is_changed = true
    return decide(e, cost, e.a.assess, x, y)
  end
  return answer, verdict
end

-- A calendar's window that the caller has not brought: it computes it and asks again.
local function window_needed(at)
  return pack('>BI7', 64, at)
end
