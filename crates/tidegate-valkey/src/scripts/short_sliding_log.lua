-- The usual call on a log that is read at once: some units of a key that is new, or that was last
-- seen under the same numbers and is not blocked. What is not usual goes on below. The form of the
-- records is told there.
do
  local op, _, flags = string.byte(ARGV[2], 1, 3)
  local header, raw = ARGV[1], READ_HEAD()
  local unpack_from, size, sums = struct.unpack, #raw, 1099511627776
  if
    op == 116
    and flags == 48
    and (size == 0 or (size < 2048 and string.sub(raw, 1, 16) == header))
  then
    local limit, period = unpack_from('>I4I7', header, 6)
    local cost, n, lag = tonumber(ARGV[3]), now, 0
    local shift, count, base = 0, 0, 0
    if size > 0 then
      local last, _
      last, shift, _, count, base = unpack_from('>I7I7I4I4I5', raw, 17)
      if last > now then
        n, lag = last, last - now
      end
    end
    local newest, total = -1, base
    if count > 0 then
      newest, total = unpack_from('>i7I5', raw, 32 + count * 12)
    end
    local cutoff, gone = n - period + shift, 0
    if count > 0 and newest <= cutoff then
      gone, base = count, total
    elseif count > 0 and unpack_from('>i7', raw, 44) <= cutoff then
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
    local used = (total - base) % sums
    local above = used + cost - limit
    if lag <= 1000000 and cost <= limit and cost > 0 and newest ~= n + shift then
      if above <= 0 then
        local kept = ''
        if gone < count then
          kept = string.sub(raw, 44 + gone * 12)
        else
          shift = 0
        end
        local log = struct.pack('>I7I7I4I4I5', n, shift, 0, count - gone + 1, base)
        local record = struct.pack('>i7I5', n + shift, (total + cost) % sums)
        local value, micros = header .. log .. kept .. record, period + lag + 1000000
        WRITE(value, micros)
        return struct.pack('>BI4I4I4i7i7i7I7', 0, limit, -above, cost, 0, 0, period + lag, n)
      end
      if gone < count then
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
        local wait = period - shift - now
        local retry = unpack_from('>i7', raw, 32 + high * 12) + wait
        local remaining = used < limit and limit - used or 0
        return struct.pack('>BI4I4I4i7i7i7I7', 1, limit, remaining, cost, 0, retry, newest + wait, n)
      end
    end
  end
end
