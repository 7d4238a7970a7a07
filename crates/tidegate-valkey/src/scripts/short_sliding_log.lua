-- The usual call on a log that is read at once: units of a key that is new, or that was last seen
-- under the same numbers and is not blocked. What a log consists of is told below.
local raw = READ_HEAD(key)
local unpack_from, size, sums = struct.unpack, #raw, 1099511627776
if cost > 0 and (size == 0 or (size < 2048 and string.sub(raw, 1, 16) == header)) then
  local period
  limit, period = unpack_from('>I4I7', header, 6)
  local shift, count, base, newest, total = 0, 0, 0, -1, 0
  if size > 0 then
    local last, from
    last, shift, from, count, base = unpack_from('>I7I7I4I4I5', raw, 17)
    n, total = last > now and last or now, base - from
  end
  local cutoff, gone = n - period + shift, 0
  if count > 0 then
    newest, total = unpack_from('>i7I5', raw, 32 + count * 12)
    if newest <= cutoff then
      gone, base = count, total
    elseif unpack_from('>i7', raw, 44) <= cutoff then
      local high = count
      gone = 1
      while high - gone > 1 do
        local middle = math.floor((gone + high) / 2)
        if unpack_from('>i7', raw, 32 + middle * 12) > cutoff then
          high = middle
        else
          gone = middle
        end
      end
      base = unpack_from('>I5', raw, 39 + gone * 12)
    end
  end
  local used = (total - base) % sums
  local above = used + cost - limit
  if cost > limit or newest == n + shift then
    -- Not usual: what can never fit, and a second charge of one instant.
    verdict = nil
  elseif above <= 0 then
    local kept = ''
    if gone < count then
      kept = string.sub(raw, 44 + gone * 12)
    else
      shift = 0
    end
    state = struct.pack('>I7I7I4I4I5', n, shift, 0, count - gone + 1, base)
      .. kept
      .. struct.pack('>i7I5', n + shift, (total + cost) % sums)
    verdict, remaining, reset, fresh = 0, -above, period, period
  elseif gone < count then
    -- The first record with which so many units have left.
    local low, high = gone, count
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if (unpack_from('>I5', raw, 39 + middle * 12) - base) % sums >= above then
        high = middle
      else
        low = middle
      end
    end
    local wait = period - shift - n
    verdict, remaining = 1, used < limit and limit - used or 0
    retry, reset = unpack_from('>i7', raw, 32 + high * 12) + wait, newest + wait
  end
end
