-- Charges in order of their time. A record is a time and the sum of all charges up to it, modulo
-- 2^40: so what is used between two of them is one subtraction, and any is found by halving.
-- Charges of one instant are one record, which nothing can tell from several. Stored times are
-- `shift` later than the true ones: a corrected clock moves all of them at once.
--
-- The records of a log are a part of a stored value, of which only the first `head` bytes may have
-- been read, followed by a `tail` of those that are new or have changed.
local log = {}
local record_size, page_records, sums = 12, 128, 1099511627776
-- What is read of a value at once; longer ones are read in pages and written in parts.
local head_size = 2048

-- The first bytes of a value, which are all of most values.
function log.read(key)
  return read_range(key, 0, head_size - 1)
end

function log.new()
  return { from = 0, to = 0, base = 0, shift = 0, times = {}, totals = {}, added = 0 }
end

-- Reads the log that begins at `at` in `raw`. Where its value is longer than that, `key` is where
-- the rest is.
function log.decode(raw, at, key)
  local shift, from, to, base = unpack_from('>I7I4I4I5', raw, at)
  return {
    head = raw,
    key = #raw == head_size and key or nil,
    offset = at + 19,
    pages = {},
    from = from,
    to = to,
    base = base,
    shift = shift,
    times = {},
    totals = {},
    added = 0,
  }
end

-- Where the bytes of a log of a whole value end.
function log.size(g)
  return 20 + g.to * record_size
end

local function stored(g, index)
  local at = g.offset + index * record_size
  if at + record_size <= #g.head then
    return unpack_from('>i7I5', g.head, at + 1)
  end
  local page, within = divide(index, page_records)
  local bytes = g.pages[page]
  if not bytes then
    local first = g.offset + page * page_records * record_size
    bytes = read_range(g.key, first, first + page_records * record_size - 1)
    g.pages[page] = bytes
  end
  return unpack_from('>i7I5', bytes, within * record_size + 1)
end

local function count(g)
  return g.to - g.from + g.added
end

-- The stored time of the `i`-th record, counted from 1, and the sum of charges up to it.
local function record(g, i)
  local kept = g.to - g.from
  if i > kept then
    return g.times[i - kept], g.totals[i - kept]
  end
  return stored(g, g.from + i - 1)
end

local function total(g, i)
  if i == 0 then
    return g.base
  end
  local _, sum = record(g, i)
  return sum
end

-- How many records come before the first one that `is_after`.
local function search(g, low, is_after)
  local high = count(g) + 1
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if is_after(record(g, middle)) then
      high = middle
    else
      low = middle
    end
  end
  return low
end

-- How many records are at or before `cutoff`.
local function expired(g, cutoff)
  local most = count(g)
  cutoff = cutoff + g.shift
  if most == 0 or record(g, 1) > cutoff then
    return 0
  elseif record(g, most) <= cutoff then
    return most
  end
  return search(g, 1, function(time)
    return time > cutoff
  end)
end

-- What was charged after `cutoff`.
function log.sum(g, cutoff)
  return (total(g, count(g)) - total(g, expired(g, cutoff))) % sums
end

-- The time of the newest charge, if it is after `cutoff`.
function log.newest(g, cutoff)
  local most = count(g)
  if most > 0 then
    local newest = record(g, most) - g.shift
    if newest > cutoff then
      return newest
    end
  end
  return nil
end

-- The time of the charge with which, counted from the oldest after `cutoff`, so many units have
-- left.
function log.leaves(g, cutoff, units)
  local gone = expired(g, cutoff)
  local before = total(g, gone)
  local place = search(g, gone, function(_, sum)
    return (sum - before) % sums >= units
  end) + 1
  if place > count(g) then
    return nil
  end
  return record(g, place) - g.shift
end

-- Makes the records from the `i`-th on part of the tail.
local function thaw(g, i)
  local kept = g.to - g.from
  if i > kept then
    return
  end
  local times, totals = {}, {}
  for j = i, count(g) do
    times[#times + 1], totals[#totals + 1] = record(g, j)
  end
  g.to, g.times, g.totals, g.added = g.from + i - 1, times, totals, #times
end

-- Drops the first `gone` records.
local function drop(g, gone)
  g.base = total(g, gone)
  local kept = g.to - g.from
  if gone <= kept then
    g.from = g.from + gone
    return
  end
  thaw(g, 1)
  for _ = 1, gone do
    table.remove(g.times, 1)
    table.remove(g.totals, 1)
  end
  g.added = g.added - gone
end

-- Drops all charges at or before `cutoff`.
function log.trim(g, cutoff)
  local gone = expired(g, cutoff)
  if gone > 0 then
    drop(g, gone)
  end
  if count(g) == 0 then
    g.shift = 0
  end
end

-- The place of the first record that is not before stored time `at`.
local function place_of(g, at)
  return search(g, 0, function(time)
    return time >= at
  end) + 1
end

local function change_totals(g, from, by)
  for i = from, g.added do
    g.totals[i] = (g.totals[i] + by) % sums
  end
end

-- Adds a charge; where the clock stepped back it may not be the newest.
function log.add(g, at, cost)
  if cost == 0 then
    return
  end
  at = at + g.shift
  local most = count(g)
  local newest = most > 0 and record(g, most) or -never
  if newest < at then
    g.added = g.added + 1
    g.times[g.added], g.totals[g.added] = at, (total(g, most) + cost) % sums
    return
  end
  local place = place_of(g, at)
  local before = total(g, place - 1)
  local is_there = record(g, place) == at
  thaw(g, place)
  local i = place - (g.to - g.from)
  change_totals(g, i, cost)
  if not is_there then
    table.insert(g.times, i, at)
    table.insert(g.totals, i, (before + cost) % sums)
    g.added = g.added + 1
  end
end

local function tail_bytes(g)
  local bytes = {}
  for i = 1, g.added do
    bytes[i] = pack('>i7I5', g.times[i], g.totals[i])
  end
  return table.concat(bytes)
end

-- The log as bytes, from a value that was read whole.
function log.encode(g)
  local kept = ''
  if g.to > g.from then
    local first = g.offset + g.from * record_size + 1
    kept = sub(g.head, first, first + (g.to - g.from) * record_size - 1)
  end
  return pack('>I7I4I4I5', g.shift, 0, count(g), g.base) .. kept .. tail_bytes(g)
end

-- Writes a value that consists of `prefix` and the log. A long one is written in parts, until half
-- of it is dead.
function log.save(key, prefix, g, micros)
  if not g.key then
    write(key, prefix .. log.encode(g), micros)
  elseif #prefix + 20 ~= g.offset or g.from * 2 > g.to then
    local first = g.offset + g.from * record_size
    local kept = ''
    if g.to > g.from then
      kept = read_range(key, first, g.offset + g.to * record_size - 1)
    end
    local header = pack('>I7I4I4I5', g.shift, 0, count(g), g.base)
    write(key, prefix .. header .. kept .. tail_bytes(g), micros)
  else
    local header = pack('>I7I4I4I5', g.shift, g.from, g.to + g.added, g.base)
    local parts = { 0, prefix .. header }
    if g.added > 0 then
      parts[3], parts[4] = g.offset + g.to * record_size, tail_bytes(g)
    end
    write_parts(key, parts, micros)
  end
end
