-- The usual call on a window of two cells: units of a key that is new, or that was last seen under
-- the same numbers and is not blocked, all in numbers below 2^53.
local raw = READ(key)
local unpack_from, fmod, most = struct.unpack, math.fmod, 9007199254740992
if cost > 0 and (not raw or (#raw == 31 and string.sub(raw, 1, 16) == header)) then
  local period
  limit, period = unpack_from('>I4I7', header, 6)
  local last, previous, current = now, 0, 0
  if raw then
    last, previous, current = unpack_from('>I7I4I4', raw, 17)
    n = last > now and last or now
  end
  local elapsed = fmod(n, period)
  local begun = n - elapsed
  if last < begun - period then
    previous, current = 0, 0
  elseif last < begun then
    previous, current = current, 0
  end
  local view, room = previous * (period - elapsed), limit - cost
  if cost <= limit and view < most and limit * period < most then
    local rest = fmod(view, period)
    local used = current + (rest > 0 and (view - rest) / period + 1 or view / period)
    local left = period - elapsed
    if used <= room then
      state = struct.pack('>I7I4I4', n, previous, current + cost)
      verdict, remaining, reset = 0, room - used, left + period
    else
      verdict, remaining = 1, math.max(limit - used, 0)
      reset = current > 0 and left + period or left
      -- How far into a cell the older count has faded enough: into this one, or into the next.
      local older, share = previous, room - current
      if share < 0 then
        older, share = current, room
      end
      local faded = 0
      if older > 0 then
        rest = fmod(share * period, older)
        faded = period - math.min((share * period - rest) / older, period)
      end
      retry = room >= current and math.max(faded - elapsed, 0) or left + faded
    end
    fresh = reset
  end
end
