-- Values that are too long to be read and written as a whole.

-- The bytes from `first` to `last`, counted from 0; empty where there is nothing.
local function read_range(key, first, last)
  return redis.call('GETRANGE', key, first, last)
end

-- Overwrites parts of a value: pairs of an offset and bytes.
local function write_parts(key, parts, micros)
  for i = 1, #parts, 2 do
    redis.call('SETRANGE', key, parts[i], parts[i + 1])
  end
  if micros == math.huge then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, math.ceil((now % 1000 + micros) / 1000))
  end
end
