-- One operation on one key.
local entry = open(KEYS[1], ARGV[1], ARGV[2])
if entry.needs then
  return window_needed(entry.needs)
end
local answer = operate(entry, sub(ARGV[2], 1, 1), ARGV[3], ARGV[4], ARGV[5])
close(entry)
return answer
