-- The usual call on a token bucket: tokens of a key that is new, or that was last seen under the
-- same numbers and is not blocked, all in numbers below 2^52.
local raw = READ(key)
local unpack_from, fmod = struct.unpack, math.fmod
if #header == 24 and (not raw or (#raw == 42 and string.sub(raw, 1, 24) == header)) then
  local r, t, _, capacity = unpack_from('>I4I7I4I4', header, 6)
  local last, w, f = now, 0, 0
  limit = capacity
  if raw then
    last, w, f = unpack_from('>I7I4I7', raw, 25)
    n = last > now and last or now
  end
  local deficit = w * t + f
  local is_small = deficit < 4503599627370496
  deficit = math.max(deficit - r * (n - last), 0)
  local charged = deficit + cost * t
  if r > 0 and is_small and charged < 4503599627370496 and cost <= limit then
    local rest = fmod(charged, t)
    local whole = (charged - rest) / t
    remaining = rest > 0 and limit - whole - 1 or limit - whole
    if remaining >= 0 then
      reset, verdict = charged, 0
      state = struct.pack('>I7I4I7', n, whole, rest)
    else
      reset, verdict = deficit, 1
      retry = charged - limit * t
      local above = fmod(retry, r)
      retry = above > 0 and (retry - above) / r + 1 or retry / r
      rest = fmod(deficit, t)
      whole = (deficit - rest) / t
      remaining = math.max(rest > 0 and limit - whole - 1 or limit - whole, 0)
    end
    local above = fmod(reset, r)
    reset = above > 0 and (reset - above) / r + 1 or reset / r
    fresh = reset
  end
end
