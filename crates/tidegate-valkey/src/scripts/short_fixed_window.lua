-- The usual call on a window of the clock: some units of a key that is new, or that was last seen
-- under the same numbers and is not blocked. What is not usual goes on below.
do
  local op, _, flags = string.byte(ARGV[2], 1, 3)
  local header, raw = ARGV[1], READ()
  if
    op == 116
    and flags == 48
    and string.byte(header) == 70
    and (not raw or (#raw == 27 and string.sub(raw, 1, 16) == header))
  then
    local limit, period = struct.unpack('>I4I7', header, 6)
    local cost, n, used = tonumber(ARGV[3]), now, 0
    if raw then
      local last
      last, used = struct.unpack('>I7I4', raw, 17)
      if last > now then
        n = last
      elseif last < now - math.fmod(now, period) then
        used = 0
      end
    end
    local lag, charged = n - now, used + cost
    if lag <= 1000000 and cost <= limit then
      local left = period - math.fmod(n, period) + lag
      if charged <= limit then
        if cost > 0 then
          local value, micros = header .. struct.pack('>I7I4', n, charged), left + 1000000
          WRITE(value, micros)
        end
        return struct.pack('>BI4I4I4i7i7i7I7', 0, limit, limit - charged, cost, 0, 0, charged > 0 and left or 0, n)
      end
      local remaining = used < limit and limit - used or 0
      return struct.pack('>BI4I4I4i7i7i7I7', 1, limit, remaining, cost, 0, left, used > 0 and left or 0, n)
    end
  end
end
