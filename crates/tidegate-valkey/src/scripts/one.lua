-- One operation on one key.
local entry = open(KEYS[1], ARGV[1], ARGV[3])
if entry.needs then
  return window_needed(entry.needs)
end
local answer
if operations[ARGV[2]] then
  answer = operations[ARGV[2]](entry, ARGV[4], ARGV[5], ARGV[6])
else
  answer = take(entry, ARGV[2], operands(ARGV[2], ARGV[4], ARGV[5]))
end
close(entry)
return answer
