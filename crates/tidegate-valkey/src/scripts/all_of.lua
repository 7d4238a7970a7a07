-- Several keys at one moment: all are looked at first, then all are charged, or none. For each key
-- there are a header, a demand, a context and its two operands.
local entries, answers, passes = {}, {}, true
for i, key in ipairs(KEYS) do
  local at = 5 * i - 4
  entries[i] = open(key, ARGV[at], ARGV[at + 2])
  if entries[i].needs then
    return window_needed(entries[i].needs)
  end
end
for i, e in ipairs(entries) do
  local at = 5 * i - 4
  e.op = ARGV[at + 1]
  e.x, e.y = operands(e.op, ARGV[at + 3], ARGV[at + 4])
  e.answer, e.verdict = decide(e, cost_of(e.op, e.x, e.y), e.a.assess, e.x, e.y)
  if not has(e.flags, watches) then
    e.answer, e.verdict = punish(e, e.op, e.x, e.answer, e.verdict)
    passes = passes and e.verdict == 0
  end
end
for i, e in ipairs(entries) do
  if passes and e.verdict == 0 then
    append(e.answer, charge(e, e.op, e.x, e.y))
  end
  close(e)
  answers[i] = e.answer
end
return answers
