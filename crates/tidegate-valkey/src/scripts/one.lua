-- One operation on one key.
local e = open(KEYS[1], ARGV[1], ARGV[2])
if e.needs then
  return window_needed(e.needs)
end
local op = sub(ARGV[2], 1, 1)
local answer
if op == 't' or op == 'a' then
  answer = take(e, op, tonumber(ARGV[3]))
elseif op == 'q' then
  answer = take(e, op, ARGV[3], tonumber(ARGV[4]))
else
  answer = rarely(e, op, ARGV[3], ARGV[4], ARGV[5])
end
close(e)
return answer
