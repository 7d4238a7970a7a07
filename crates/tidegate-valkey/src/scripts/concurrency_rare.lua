-- Concurrency: what few calls need.

function permits.rebase(_, s, to)
  s.shift, s.last = s.shift + s.last - to, to
  if s.shift > 2251799813685248 then
    -- Beyond this the offset is worked into the records, so that it stays exact.
    local moved = {}
    for at = 1, #s.records, lease_size do
      local weight, token, granted, expires = fields(s, at)
      moved[#moved + 1] = sub(s.records, at, at + 15)
        .. pack('>I4I7i7i7', weight, token, granted - s.shift, expires - s.shift)
    end
    s.records, s.shift = table.concat(moved), 0
  end
end

function permits.standing(p, s, n)
  local first, used = live(s, n)
  return min(used, u32_max), max(p.limit - used, 0), reset(s, first, n)
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
  s.records = sub(s.records, 1, at - 1) .. sub(s.records, at + lease_size)
  local entry = id .. pack('>I4I7i7i7', weight, token, granted, expires)
  return grant(s, insert(s, entry, expires))
end

function permits.release(p, s, n, id)
  local first = live(s, n)
  if not find(s, first, id) then
    return false
  end
  permits.advance(p, s, n)
  local at = find(s, 1, id)
  s.sum = s.sum - fields(s, at)
  s.records = sub(s.records, 1, at - 1) .. sub(s.records, at + lease_size)
  -- Whoever waits for a permit of this key hears it, in whichever process.
  redis.call('PUBLISH', KEYS[1] .. ':free', '')
  return true
end

-- The live leases, as they are told.
function permits.leases(s, n)
  local leases = {}
  for at = live(s, n), #s.records, lease_size do
    leases[#leases + 1] = sub(s.records, at, at + 15) .. grant(s, at)
  end
  return table.concat(leases)
end
