-- wrk's side: events of 450 bytes, alone (EVENTS=1) or in arrays; DELAY_MS between the requests of a connection.
-- Every event has an id of its own in its process; BASE keeps those of two runs apart. Prints one line of JSON at the end.
local events = tonumber(os.getenv("EVENTS") or "1")
local delay_ms = tonumber(os.getenv("DELAY_MS") or "0")
local number = tonumber(os.getenv("BASE") or "0")
local trace_flags = os.getenv("TRACE_FLAGS") or ""
local size = 450
local text = string.rep("Thanks for the quick answer, it works fine now. ", 10)
local at = "2026-11-20T09:30:00.000Z"

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. (os.getenv("TOKEN") or "")

local function event()
  number = number + 1
  local head = '{"id":' .. number .. ',"memberId":' .. (number % 442128) .. ',"title":"Weekly meetup #' .. number
    .. '","createdAt":"' .. at .. '","modifiedAt":"' .. at .. '","body":"'
  return head .. string.sub(text, 1, size - #head - 2) .. '"}'
end

local function array()
  local list = {}
  for index = 1, events do list[index] = event() end
  return "[" .. table.concat(list, ",") .. "]"
end

if events == 1 then
  request = function()
    local body = event()
    if trace_flags ~= "" then
      wrk.headers["traceparent"] = string.format("00-%016x%016x-%016x-%s", number * 2654435761 % 2^53, number, number, trace_flags)
    end
    return wrk.format(nil, nil, nil, body)
  end
else
  -- made ahead: what is measured is the gateway, not Lua
  local made, next_one = {}, 0
  request = function()
    if #made < 128 then
      made[#made + 1] = wrk.format(nil, nil, nil, array())
      return made[#made]
    end
    next_one = next_one % #made + 1
    return made[next_one]
  end
end

if delay_ms > 0 then
  delay = function() return delay_ms end
end

done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,"bad_status":%d,"broken":%d,"timeouts":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
    e.status, e.connect + e.read + e.write, e.timeout))
end
