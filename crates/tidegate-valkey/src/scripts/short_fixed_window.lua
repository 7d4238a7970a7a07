-- The usual call on a window of the clock: units of a key that is new, or that was last seen under
-- the same numbers and is not blocked.
local raw = READ(key)
if string.byte(header) == 70 and (not raw or (#raw == 27 and string.sub(raw, 1, 16) == header)) then
  local used, period = 0, nil
  limit, period = struct.unpack('>I4I7', header, 6)
  local elapsed = math.fmod(now, period)
  if raw then
    local last
    last, used = struct.unpack('>I7I4', raw, 17)
    if last > now then
      n, elapsed = last, math.fmod(last, period)
    elseif last < now - elapsed then
      used = 0
    end
  end
  if cost <= limit then
    fresh = period - elapsed
    if used + cost <= limit then
      used = used + cost
      verdict, remaining, reset = 0, limit - used, used > 0 and fresh or 0
      state = struct.pack('>I7I4', n, used)
    else
      verdict, retry, reset = 1, fresh, used > 0 and fresh or 0
      remaining = used < limit and limit - used or 0
    end
  end
end
