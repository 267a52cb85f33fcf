package endpoint

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// TestParse shows the rules of URLs, that equal ones are one rule, which addresses may be
// dialled for them, and that errors do not contain what may be secret.
func TestParse(t *testing.T) {
	e, err := Parse([]string{"https://Chat.example/hooks/hush?k=hush", "https://chat.example/other", "http://10.1.2.3:8080/x", "tcp://siem.example:6514", "http://169.254.169.254/"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range e.Rules {
		got = append(got, r.Mode+" "+r.Host)
	}
	want := "passthrough chat.example|http 10.1.2.3|tcp siem.example|http 169.254.169.254"
	if strings.Join(got, "|") != want || e.Rules[0].Port != 443 || e.Rules[1].Port != 8080 {
		t.Errorf("%q, %+v", got, e.Rules)
	}
	if _, err := netrule.Compile(e.Rules); err != nil {
		t.Error(err)
	}
	if len(e.Literal) != 1 || e.Literal[0].String() != "10.1.2.3/32" {
		t.Error(e.Literal)
	}
	if e, err := Parse([]string{"http://localhost:4318", "http://localhost.example"}); err != nil || len(e.Literal) != 2 || e.Literal[0].String() != "127.0.0.1/32" || e.Literal[1].String() != "::1/128" {
		t.Error(e, err)
	}
	for _, bad := range []string{"ftp://hush", "https://hush\x00", "tcp://hush", "https://", "http://0x7f.1/hush", "https://[::ffff:169.254.169.254]/hush", "https://127.1", "hush"} {
		if _, err := Parse([]string{bad}); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
