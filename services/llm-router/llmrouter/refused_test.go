package llmrouter

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// TestRefused shows that an error names the invalid member by its JSON pointer and
// contains no type names of Go.
func TestRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":"x"}`:                                                    "/messages: a string does not belong here",
		`{"model":"m","messages":[{"role":"user","content":"x"},{"role":"boss"}]}`:        `/messages/1/role: "boss" is unknown`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"hologram"}]}]}`:      `/messages/0/content/0/type: "hologram" is unknown`,
		`{"model":"m","messages":[{"role":"user","content":7}]}`:                          "/messages/0/content: a number does not belong here",
		`{"model":"m","messages":[],"stop":[1]}`:                                          "/stop: a number does not belong here",
		`{"model":"m","messages":[],"temperature":"hot"}`:                                 "/temperature: a string does not belong here",
		`{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":1}}]}`: "/tools/0: a number does not belong here",
	} {
		_, err := callerOf(llm.Chat).Parse([]byte(body))
		if err == nil {
			t.Errorf("%s is read", body)
			continue
		}
		f := refused([]byte(body), err, "")
		if f.Message != want || f.Fault.Param != strings.SplitN(want, ":", 2)[0] || f.Code != "invalid_input" {
			t.Errorf("%s: %q %q, want %q", body, f.Message, f.Fault.Param, want)
		}
	}
	if f := refused([]byte(`{"a":1}`), errNotStored, "no: "); f.Fault.Param != "" || f.Message != "no: "+errNotStored.Error() {
		t.Errorf("%+v", f.Fault)
	}
}
