package llmapi

import "testing"

// TestItemsOf shows that a missing or null input and an empty list have no items, that a
// string is one item, and that a list has its items. Input of another type and a
// malformed body are errors.
func TestItemsOf(t *testing.T) {
	for body, want := range map[string]int{`{}`: 0, `{"input":null}`: 0, `{"input":""}`: 1, `{"input":"hi"}`: 1, `{"input":[]}`: 0, `{"input":[{"role":"user","content":"a"},{"type":"function_call_output"}]}`: 2} {
		if items, err := itemsOf([]byte(body), "c-1"); err != nil || items == nil || len(items) != want {
			t.Errorf("%s: %v %v, want %d items", body, items, err, want)
		}
	}
	for _, body := range []string{`{"input":7}`, `{"input":{}}`, `[`} {
		if items, err := itemsOf([]byte(body), "c-1"); err == nil {
			t.Errorf("%s: %v", body, items)
		}
	}
}
