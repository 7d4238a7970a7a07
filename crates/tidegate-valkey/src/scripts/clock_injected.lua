-- For tests only: the time is the last argument, and keys live by it. The lifetime of a key lies
-- beside it, since the server's own expiry goes by the server's clock. With a mark behind the time
-- keys live for ever.
local now, mark = string.match(ARGV[#ARGV], '^(%d+)(!?)$')
now = tonumber(now)
ARGV[#ARGV] = nil
