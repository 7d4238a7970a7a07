-- So many at once: leases that expire. The records stand in order of their expiry, soonest first:
-- the lease's id, its weight, its fencing token, and when it was granted and expires. Stored times
-- are `shift` later than the true ones.
local permits = {}
local lease_size = 41

function permits.numbers(header)
  local limit, lease, hold = unpack_from('>I4I7I7', header, 6)
  -- The longest hold is written one longer, so that 0 stands for none.
  return { limit = limit, lease = lease, longest = hold > 0 and hold - 1 or never }
end

function permits.fresh(_, n)
  return { last = n, shift = 0, token = 0, sum = 0, records = '' }
end

-- Weight, token, time of the grant and expiry of the record that begins at byte `at`.
local function fields(s, at)
  return unpack_from('>I4I7i7i7', s.records, at + 16)
end

local function expiry(s, at)
  return (unpack_from('>i7', s.records, at + 34))
end

-- The first byte of the first record that expires after stored time `v`.
local function first_after(s, v)
  local low, high = 0, #s.records / lease_size
  if high == 0 or expiry(s, 1) > v then
    return 1
  end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if expiry(s, middle * lease_size + 1) > v then
      high = middle
    else
      low = middle
    end
  end
  return high * lease_size + 1
end

-- The first byte of the first live entry, and the weight of all live ones.
local function live(s, n)
  local first = first_after(s, n + s.shift)
  local used = s.sum
  for at = 1, first - 1, lease_size do
    used = used - fields(s, at)
  end
  return first, used
end

-- The first byte of the live record of a lease; nil if there is none.
local function find(s, first, id)
  local at = string.find(s.records, id, first, true)
  while at and (at - 1) % lease_size ~= 0 do
    at = string.find(s.records, id, at + 1, true)
  end
  return at
end

-- How long until the record that begins at byte `at` expires.
local function expires_in(s, at, n)
  return max(expiry(s, at) - s.shift - n, 0)
end

local function reset(s, first, n)
  if first > #s.records then
    return 0
  end
  return expires_in(s, #s.records - lease_size + 1, n)
end

-- When leases of so much weight have expired, if none is renewed.
local function freed_in(s, first, n, weight)
  local freed = 0
  for at = first, #s.records, lease_size do
    freed = freed + fields(s, at)
    if freed >= weight then
      return expires_in(s, at, n)
    end
  end
  return never
end

-- A lease as it is told.
local function grant(s, at)
  local weight, token, _, expires = fields(s, at)
  return pack('>I4I7I7', weight, token, max(expires - s.shift, 0))
end

-- Puts a entry where its expiry belongs.
local function insert(s, entry, expires)
  local at = #s.records + 1
  if at > 1 and expiry(s, at - lease_size) > expires then
    at = first_after(s, expires)
  end
  s.records = sub(s.records, 1, at - 1) .. entry .. sub(s.records, at)
  return at
end

function permits.advance(_, s, n)
  local first, used = live(s, n)
  s.records, s.sum, s.last = sub(s.records, first), used, n
  if s.records == '' then
    s.shift = 0
  end
end

function permits.limit(p)
  return p.limit
end

function permits.assess(p, s, n, id, weight)
  local first, used = live(s, n)
  local remaining, full = max(p.limit - used, 0), reset(s, first, n)
  if find(s, first, id) then
    return 0, remaining, 0, 0, full
  elseif weight > p.limit then
    return 3, remaining, 0, never, full
  end
  local excess = used + weight - p.limit
  if excess > 0 then
    return 1, remaining, 0, freed_in(s, first, n, excess), full
  end
  return 0, remaining - weight, 0, 0, weight == 0 and full or max(full, p.lease)
end

-- Grants a lease, or finds it; whether the state has changed is the second answer.
function permits.commit(p, s, n, id, weight)
  local held = find(s, live(s, n), id)
  if held then
    return grant(s, held), false
  end
  permits.advance(p, s, n)
  s.token = max(n, s.token + 1)
  local granted = n + s.shift
  local expires = granted + p.lease
  local entry = id .. pack('>I4I7i7i7', weight, s.token, granted, expires)
  s.sum = s.sum + weight
  return grant(s, insert(s, entry, expires)), true
end

-- A later grant must get a higher token without being told.
function permits.fresh_after(_, s, n)
  return max(reset(s, live(s, n), n), s.token + 1 - max(n, 1))
end

function permits.encode(_, s)
  return pack('>I7I7I5', s.shift, s.token, s.sum) .. s.records
end

function permits.decode(_, raw, at, last)
  local shift, token, sum = unpack_from('>I7I7I5', raw, at)
  return { last = last, shift = shift, token = token, sum = sum, records = sub(raw, at + 19) }
end

algorithms[80] = permits
header_sizes.P = 23
