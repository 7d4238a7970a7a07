-- So many at once: leases that expire. The records stand in order of their expiry, soonest first:
-- the lease's id, its weight, its fencing token, and when it was granted and expires. Stored times
-- are `shift` later than the true ones.
do
  local permits = {}
  local record_size = 41

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
    local low, high = 0, #s.records / record_size
    if high == 0 or expiry(s, 1) > v then
      return 1
    end
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      if expiry(s, middle * record_size + 1) > v then
        high = middle
      else
        low = middle
      end
    end
    return high * record_size + 1
  end

  -- The first byte of the first live record, and the weight of all live ones.
  local function live(s, n)
    local first = first_after(s, n + s.shift)
    local used = s.sum
    for at = 1, first - 1, record_size do
      used = used - fields(s, at)
    end
    return first, used
  end

  -- The first byte of the live record of a lease; nil if there is none.
  local function find(s, first, id)
    local at = string.find(s.records, id, first, true)
    while at and (at - 1) % record_size ~= 0 do
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
    return expires_in(s, #s.records - record_size + 1, n)
  end

  -- When leases of so much weight have expired, if none is renewed.
  local function freed_in(s, first, n, weight)
    local freed = 0
    for at = first, #s.records, record_size do
      freed = freed + fields(s, at)
      if freed >= weight then
        return expires_in(s, at, n)
      end
    end
    return never
  end

  local function grant(s, at)
    local weight, token, _, expires = fields(s, at)
    return { weight, token, max(expires - s.shift, 0) }
  end

  -- Puts a record where its expiry belongs.
  local function insert(s, record, expires)
    local at = #s.records + 1
    if at > 1 and expiry(s, at - record_size) > expires then
      at = first_after(s, expires)
    end
    s.records = sub(s.records, 1, at - 1) .. record .. sub(s.records, at)
    return at
  end

  function permits.rebase(_, s, to)
    s.shift, s.last = s.shift + s.last - to, to
    if s.shift > 2251799813685248 then
      -- Beyond this the offset is worked into the records, so that it stays exact.
      local moved = {}
      for at = 1, #s.records, record_size do
        local weight, token, granted, expires = fields(s, at)
        moved[#moved + 1] = sub(s.records, at, at + 15)
          .. pack('>I4I7i7i7', weight, token, granted - s.shift, expires - s.shift)
      end
      s.records, s.shift = table.concat(moved), 0
    end
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
    local above = used + weight - p.limit
    if above > 0 then
      return 1, remaining, 0, freed_in(s, first, n, above), full
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
    local record = id .. pack('>I4I7i7i7', weight, s.token, granted, expires)
    s.sum = s.sum + weight
    return grant(s, insert(s, record, expires)), true
  end

  function permits.standing(p, s, n)
    local first, used = live(s, n)
    return min(used, u32_max), max(p.limit - used, 0), reset(s, first, n)
  end

  -- A later grant must get a higher token without being told.
  function permits.fresh_after(_, s, n)
    return max(reset(s, live(s, n), n), s.token + 1 - max(n, 1))
  end

  -- Leases are work under way: no change of numbers undoes them, except a reset.
  function permits.reprice(_, old, s, n, mode)
    if mode == 3 then
      s.records, s.sum = '', 0
    end
    permits.advance(old, s, n)
  end

  -- Only the token is left, and the moment it was given is all that the key has seen.
  function permits.start_over(_, s)
    s.last, s.shift, s.records, s.sum = min(s.last, s.token), 0, '', 0
    return s.token > 0
  end

  function permits.renew(p, s, n, id)
    local first = live(s, n)
    if not find(s, first, id) then
      return nil
    end
    permits.advance(p, s, n)
    local at = find(s, 1, id)
    local weight, token, granted, expires = fields(s, at)
    -- A change of limits may have shortened the lease: what was promised stays.
    expires = max(min(n + s.shift + p.lease, granted + p.longest), expires)
    s.records = sub(s.records, 1, at - 1) .. sub(s.records, at + record_size)
    local record = id .. pack('>I4I7i7i7', weight, token, granted, expires)
    return grant(s, insert(s, record, expires))
  end

  function permits.release(p, s, n, id)
    local first = live(s, n)
    if not find(s, first, id) then
      return false
    end
    permits.advance(p, s, n)
    local at = find(s, 1, id)
    s.sum = s.sum - fields(s, at)
    s.records = sub(s.records, 1, at - 1) .. sub(s.records, at + record_size)
    -- Whoever waits for a permit of this key hears it, in whichever process.
    redis.call('PUBLISH', KEYS[1] .. ':free', '')
    return true
  end

  -- Appends the live leases to an answer.
  function permits.append_leases(s, n, answer)
    local first = live(s, n)
    for at = first, #s.records, record_size do
      answer[#answer + 1] = sub(s.records, at, at + 15)
      for _, field in ipairs(grant(s, at)) do
        answer[#answer + 1] = field
      end
    end
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
end
