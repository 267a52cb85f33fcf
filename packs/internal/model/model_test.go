package model

import "testing"

// TestObject checks which object is read from a model's text.
func TestObject(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":"1"}`: "1", "```json\n{\"a\":\"1\"}\n```": "1", `Here it is: {"a":"1"} Done.`: "1", `<think>{"a":"0"}</think>{"a":"1"}`: "1", `{"a":"1"}{"a":"2"}`: "1", "none": "", `{"a":`: "", `<think>{"a":"0"}</think>`: "", `["a"]`: "",
	} {
		var out struct{ A string }
		if err := Object(text, &out); (err == nil) != (want != "") || out.A != want {
			t.Errorf("%s: %q (%v)", text, out.A, err)
		}
	}
}
