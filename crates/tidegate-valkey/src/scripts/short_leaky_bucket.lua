-- The usual call on a paced queue: a place for a key that is new, or that was last seen under the
-- same numbers and is not blocked, all in numbers below 2^52.
local raw = READ(key)
local unpack_from, fmod, most = struct.unpack, math.fmod, 4503599627370496
if not raw or (#raw == 53 and string.sub(raw, 1, 35) == header) then
  local r, t, _, capacity, burst, longest = unpack_from('>I4I7I4I4I4I7', header, 6)
  local last, w, f = now, 0, 0
  if raw then
    last, w, f = unpack_from('>I7I4I7', raw, 36)
    n = last > now and last or now
  end
  local deficit = w * t + f
  local is_small = deficit < most and capacity * t < most
  deficit = math.max(deficit - r * (n - last), 0)
  local allowed, charged = capacity * t, deficit + cost * t
  if longest > 0 then
    -- It is written one longer, so that 0 stands for none.
    allowed = math.min(allowed, burst * t + r * (longest - 1))
  end
  if r > 0 and is_small and charged < most and cost > 0 and cost * t <= allowed then
    limit = capacity
    if charged <= allowed then
      local rest = fmod(charged, t)
      state = struct.pack('>I7I4I7', n, (charged - rest) / t, rest)
      verdict, remaining, reset = 0, allowed - charged, charged
      local queued = math.max(charged - burst * t, 0)
      rest = fmod(queued, r)
      delay = rest > 0 and (queued - rest) / r + 1 or queued / r
    else
      verdict, remaining, reset = 1, math.max(allowed - deficit, 0), deficit
      local above = charged - allowed
      local rest = fmod(above, r)
      retry = rest > 0 and (above - rest) / r + 1 or above / r
    end
    remaining = (remaining - fmod(remaining, t)) / t
    local rest = fmod(reset, r)
    reset = rest > 0 and (reset - rest) / r + 1 or reset / r
    fresh = reset
  end
end
