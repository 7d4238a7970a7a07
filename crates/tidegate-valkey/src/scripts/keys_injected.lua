-- For tests only: keys that live by the time that the test brings.
local function expire(key)
  local at = mark == '' and redis.call('GET', key .. '#')
  if at and now >= tonumber(at) then
    redis.call('DEL', key, key .. '#')
  end
end

local function read(key)
  expire(key)
  return redis.call('GET', key)
end

local function read_range(key, first, last)
  expire(key)
  return redis.call('GETRANGE', key, first, last)
end

local function keep(key, micros)
  if micros == math.huge then
    redis.call('DEL', key .. '#')
  else
    local ends = (now - now % 1000) + math.ceil((now % 1000 + micros) / 1000) * 1000
    redis.call('SET', key .. '#', string.format('%.0f', ends))
  end
end

local function write(key, value, micros)
  redis.call('SET', key, value)
  keep(key, micros)
end

local function write_parts(key, parts, micros)
  for i = 1, #parts, 2 do
    redis.call('SETRANGE', key, parts[i], parts[i + 1])
  end
  keep(key, micros)
end

local function forget(key)
  redis.call('DEL', key, key .. '#')
end
