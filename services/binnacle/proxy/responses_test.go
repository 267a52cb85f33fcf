package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func response(items ...string) string {
	return `{"id":"resp_1","object":"response","status":"completed","output":[` + strings.Join(items, ",") + `],"usage":{"total_tokens":3}}`
}

func functionItem(name, args string) string {
	a, _ := json.Marshal(args)
	return `{"arguments":` + string(a) + `,"call_id":"call_` + name + `","id":"fc_` + name + `","name":"` + name + `","status":"completed","type":"function_call"}`
}

const textItem = `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[]}]}`

func refused(id, name, why string) string {
	return `{"content":[{"refusal":"The call of tool \"` + name + `\" was refused: ` + why + `","type":"refusal"}],"id":"` + id + `","role":"assistant","status":"completed","type":"message"}`
}

func TestResponsesPlain(t *testing.T) {
	const denied = "denied by policy: UNKNOWN_TOOL (receipt r-c-2)"
	for name, c := range map[string]struct{ in, out string }{
		"text":         {response(textItem), response(textItem)},
		"allowed":      {response(textItem, functionItem("ok", `{"b":1,"a":2}`)), response(textItem, functionItem("ok", `{"b":1,"a":2}`))},
		"denied":       {response(functionItem("rm", `{}`)), response(refused("fc_rm", "rm", denied))},
		"custom":       {response(`{"type":"custom_tool_call","id":"ctc_1","call_id":"c","name":"ok","input":"x"}`), response(`{"call_id":"c","id":"ctc_1","input":"x","name":"ok","status":"completed","type":"custom_tool_call"}`)},
		"not known":    {response(`{"type":"shell_call","id":"sh_1","call_id":"c","action":{"commands":["rm"]}}`), response(refused("sh_1", "", `tool calls of type \"shell_call item\" are not known`))},
		"mcp approval": {response(`{"type":"mcp_approval_request","id":"ap_1","name":"rm","arguments":"{}"}`), response(refused("ap_1", "rm", `tool calls of type \"mcp_approval_request item\" are not known`))},
		"done already": {response(`{"type":"web_search_call","id":"ws_1","status":"completed"}`), response(`{"type":"web_search_call","id":"ws_1","status":"completed"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, answering(c.in))
			status, got, _ := s.post(t, "/v1/responses", `{"model":"m","input":"go","tools":[{"type":"function","name":"ok"},{"type":"web_search"}]}`)
			if status != 200 || got != c.out {
				t.Errorf("%d\n got %s\nwant %s", status, got, c.out)
			}
			if !strings.Contains(s.requests[0], `"tools":["ok","web_search"]`) {
				t.Error(s.requests[0])
			}
		})
	}
}

func ev(kind, rest string) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"," + rest + ",\"sequence_number\":99}\n\n"
}

func callEvents(i int, item string, parts ...string) string {
	var it struct{ ID string }
	_ = json.Unmarshal([]byte(item), &it)
	out := ev("response.output_item.added", fmt.Sprintf(`"output_index":%d,"item":%s`, i, item))
	for _, p := range parts {
		q, _ := json.Marshal(p)
		out += ev("response.function_call_arguments.delta", fmt.Sprintf(`"output_index":%d,"item_id":%q,"delta":%s`, i, it.ID, q))
	}
	return out + ev("response.function_call_arguments.done", fmt.Sprintf(`"output_index":%d,"item_id":%q,"arguments":"{}"`, i, it.ID)) +
		ev("response.output_item.done", fmt.Sprintf(`"output_index":%d,"item":%s`, i, item))
}

func TestResponsesStream(t *testing.T) {
	text := ev("response.output_item.added", `"output_index":0,"item":`+textItem) + ev("response.output_text.delta", `"output_index":0,"delta":"hi"`) + ev("response.output_item.done", `"output_index":0,"item":`+textItem)
	ok, rm := functionItem("ok", `{"a":1}`), functionItem("rm", `{}`)
	body := ev("response.created", `"response":`+response()) + text + callEvents(1, rm, "{", "}") + callEvents(2, ok, `{"a"`, `:1}`) + ev("response.completed", `"response":`+response(textItem, rm, ok))
	s := newStand(t, answering("data: {\"type\":\"response.queued\"}\n\n"+body))
	_, got, _ := s.post(t, "/v1/responses", `{"model":"m","stream":true,"input":"go"}`)
	if strings.Contains(got, "call_rm") || strings.Count(got, "call_ok") != 3 || strings.Count(got, `"response.function_call_arguments.delta"`) != 1 || !strings.Contains(got, `"delta":"{\"a\":1}"`) {
		t.Errorf("%s", got)
	}
	if strings.Count(got, `refused: denied by policy: UNKNOWN_TOOL (receipt r-c-2)`) != 5 || len(s.requests) != 3 {
		t.Errorf("%q\n%s", s.requests, got)
	}
	for i := range strings.Count(got, "event: ") {
		if strings.Count(got, fmt.Sprintf(`"sequence_number":%d}`, i)) != 1 {
			t.Errorf("event %d is not there once\n%s", i, got)
		}
	}
	for name, body := range map[string]string{
		"never done":          ev("response.output_item.added", `"output_index":0,"item":`+rm),
		"only at the end":     ev("response.completed", `"response":`+response(rm)),
		"arguments alone":     ev("response.function_call_arguments.delta", `"output_index":0,"delta":"call_rm"`),
		"another at the end":  callEvents(0, ok) + ev("response.completed", `"response":`+response(rm)),
		"other case":          ev("response.output_item.done", `"output_index":0,"Item":`+rm),
		"twice":               ev("response.output_item.done", `"output_index":0,"item":`+textItem+`,"item":`+rm),
		"a type that folds":   ev("response.output_item.done", `"output_index":0,"item":{"type":"message","Type":"function_call","call_id":"call_rm"}`),
		"a name under a type": ev("response.output_item.done", `"output_index":0,"item":{"type":"local_shell_call","call_id":"call_rm","action":{}}`),
	} {
		s := newStand(t, answering("data: {\"type\":\"response.queued\"}\n\n"+body))
		if _, got, _ := s.post(t, "/v1/responses", `{"model":"m","stream":true,"input":"go"}`); strings.Contains(got, "call_rm") {
			t.Errorf("%s: it got through: %s", name, got)
		}
	}
}
