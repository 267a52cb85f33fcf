package logins

import (
	"net/url"
	"testing"
)

// TestRedirects shows which redirect URIs a client may have, which of them a request may name, and
// where they lead.
func TestRedirects(t *testing.T) {
	for raw, ok := range map[string]bool{
		"https://ide.example/back": true, "https://ide.example/back?x=1": true, "http://127.0.0.1/callback": true, "http://[::1]:80/": true, "http://localhost:3000/callback": true, "com.example.app:/back": true,
		"": false, "/back": false, "http://ide.example/back": false, "https:///back": false, "https://u:p@ide.example/": false, "https://ide.example/#f": false, "javascript:alert(1)": false, "data:text/html,x": false,
		"https://ide.example/\"": false, "https://ide.example/ x": false, "http://127.0.0.1.evil.example/": false, "http://127.0.0.1@evil.example/": false, "app:/back": false, "https://ide.example/\r\nSet-Cookie:x": false,
	} {
		if err := checkRedirect(raw); (err == nil) != ok {
			t.Errorf("%q: %v", raw, err)
		}
	}
	for _, c := range []struct {
		registered, given string
		want              bool
	}{
		{"https://ide.example/back", "https://ide.example/back", true},
		{"https://ide.example/back", "https://ide.example:443/back", false},
		{"https://ide.example/back", "https://ide.example/back/", false},
		{"https://ide.example/back", "https://ide.example/back?x", false},
		{"http://127.0.0.1/callback", "http://127.0.0.1:7/callback", true},
		{"http://127.0.0.1:9/callback", "http://127.0.0.1:7/callback", true},
		{"http://[::1]/callback", "http://[::1]:7/callback", true},
		{"http://127.0.0.1/callback", "http://127.0.0.2:7/callback", false},
		{"http://127.0.0.1/callback", "http://localhost:7/callback", false},
		{"http://127.0.0.1/callback", "https://127.0.0.1:7/callback", false},
		{"http://127.0.0.1/callback", "http://127.0.0.1:7/callback?x=1", false},
		{"http://127.0.0.1/callback", "http://u@127.0.0.1:7/callback", false},
		{"http://127.0.0.1/callback", "http://127.0.0.1:7/other", false},
		{"http://127.0.0.1/callback", "http://127.0.0.1:7@evil.example/callback", false},
		{"http://127.0.0.1/a%2Fb", "http://127.0.0.1:7/a/b", false},
	} {
		if got := sameRedirect(c.registered, c.given); got != c.want {
			t.Errorf("%s, %s: %v", c.registered, c.given, got)
		}
	}
	for raw, want := range map[string]string{"https://ide.example:8/back": "ide.example:8", "http://127.0.0.1:7/": "a program on this computer", "com.example.app:/back": "a program on this computer, by com.example.app"} {
		if got := target(raw); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
	for raw, want := range map[string]string{"https://ide.example/back": "https://ide.example/back?code=a+b", "https://ide.example/back?x=1": "https://ide.example/back?x=1&code=a+b", "com.example.app:/back": "com.example.app:/back?code=a+b"} {
		if got := withParameters(raw, url.Values{"code": {"a b"}}); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}
