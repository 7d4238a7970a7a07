-- The usual call on a token bucket: some tokens of a key that is new, or that was last seen under
-- the same numbers and is not blocked, all in numbers below 2^52. What is not usual goes on below.
do
  local op, _, flags = string.byte(ARGV[2], 1, 3)
  local header, raw = ARGV[1], READ()
  local unpack_from, fmod = struct.unpack, math.fmod
  if
    op == 116
    and flags == 48
    and #header == 24
    and (not raw or (#raw == 42 and string.sub(raw, 1, 24) == header))
  then
    local r, t, _, capacity = unpack_from('>I4I7I4I4', header, 6)
    local cost, n, last, w, f = tonumber(ARGV[3]), now, now, 0, 0
    if raw then
      last, w, f = unpack_from('>I7I4I7', raw, 25)
      if last > now then
        n = last
      end
    end
    local lag, deficit = n - now, w * t + f
    deficit = math.max(deficit - r * (n - last), 0)
    local charged = deficit + cost * t
    -- Each term is checked by itself: where one is too large, so is what it came from.
    if
      r > 0
      and lag <= 1000000
      and w * t + f < 4503599627370496
      and charged < 4503599627370496
      and cost <= capacity
    then
      local rest = fmod(charged, t)
      local whole = (charged - rest) / t
      if rest > 0 then
        whole = whole + 1
      end
      if whole <= capacity then
        local reset = fmod(charged, r)
        reset = reset > 0 and (charged - reset) / r + 1 or charged / r
        if cost > 0 then
          local state = struct.pack('>I7I4I7', n, rest > 0 and whole - 1 or whole, rest)
          local value, micros = header .. state, reset + lag + 1000000
          WRITE(value, micros)
        end
        if reset > 0 then
          reset = reset + lag
        end
        return struct.pack('>BI4I4I4i7i7i7I7', 0, capacity, capacity - whole, cost, 0, 0, reset, n)
      end
      local missing = charged - capacity * t
      local retry, reset = fmod(missing, r), fmod(deficit, r)
      retry = retry > 0 and (missing - retry) / r + 1 or missing / r
      reset = reset > 0 and (deficit - reset) / r + 1 or deficit / r
      if reset > 0 then
        reset = reset + lag
      end
      rest = fmod(deficit, t)
      whole = (deficit - rest) / t
      if rest > 0 then
        whole = whole + 1
      end
      return struct.pack('>BI4I4I4i7i7i7I7', 1, capacity, math.max(capacity - whole, 0), cost, 0, retry + lag, reset, n)
    end
  end
end
