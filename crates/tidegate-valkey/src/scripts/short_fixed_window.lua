-- The usual call on a window of the clock or since first use: units of a key that is new, or that
-- was last seen under the same numbers and is not blocked.
local raw = READ(key)
local align, size = string.byte(header), raw and #raw
if
  align ~= 75 and (not raw or ((size == 27 or size == 34) and string.sub(raw, 1, 16) == header))
then
  local last, used = now, 0
  local period
  limit, period = struct.unpack('>I4I7', header, 6)
  if raw then
    last, used = struct.unpack('>I7I4', raw, 17)
    n = last > now and last or now
  end
  local elapsed
  if align == 70 then
    elapsed = math.fmod(n, period)
    if last < n - elapsed then
      used = 0
    end
  else
    elapsed = raw and n - last + struct.unpack('>I7', raw, 28) or 0
    if elapsed >= period or used == 0 then
      used, elapsed = 0, 0
    end
  end
  if cost <= limit then
    fresh = period - elapsed
    if used + cost <= limit then
      used = used + cost
      verdict, remaining, reset = 0, limit - used, used > 0 and fresh or 0
      if align == 70 then
        state = struct.pack('>I7I4', n, used)
      else
        state = struct.pack('>I7I4I7', n, used, elapsed)
      end
    else
      verdict, retry, reset = 1, fresh, used > 0 and fresh or 0
      remaining = used < limit and limit - used or 0
    end
  end
end
