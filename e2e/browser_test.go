package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// chromium is a tab of a headless Chromium, which the test controls through a pipe by the DevTools
// Protocol. It reaches loopback addresses only.
type chromium struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	session string
	last    int
}

// startChromium starts Chromium (Debian's package), which ends with the test.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1", "about:blank")
	cmd.ExtraFiles = []*os.File{in, out}
	if err := cmd.Start(); err != nil {
		t.Fatal("chromium is missing; apt-get install chromium: ", err)
	}
	in.Close()
	out.Close()
	b := &chromium{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		to.Close() // Chromium exits when the pipe is closed
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
		from.Close()
	})
	_ = from.SetReadDeadline(time.Now().Add(5 * time.Minute))
	var target struct {
		ID string `json:"targetId"`
	}
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		ID string `json:"sessionId"`
	}
	b.do("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	b.session = attached.ID
	return b
}

// do sends a command and decodes its result into doc, unless that is nil. It ignores events.
func (b *chromium) do(method string, params map[string]any, doc any) {
	b.t.Helper()
	b.last++
	raw, err := json.Marshal(map[string]any{"id": b.last, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		raw, err = json.Marshal(map[string]any{"id": b.last, "method": method, "params": params})
	}
	if err == nil {
		_, err = b.to.Write(append(raw, 0))
	}
	for err == nil {
		if raw, err = b.from.ReadBytes(0); err != nil {
			break
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err = json.Unmarshal(raw[:len(raw)-1], &answer); err != nil || answer.ID != b.last {
			continue
		}
		if answer.Error != nil && answer.Error.Message == left {
			break // without a value; the caller evaluates the next page
		}
		if answer.Error != nil {
			b.t.Fatal(method, answer.Error.Message)
		}
		if doc != nil {
			err = json.Unmarshal(answer.Result, doc)
		}
		break
	}
	if err != nil {
		b.t.Fatal(method, err)
	}
}

// left is the error of an evaluation during which another page was loaded, for example because the
// page reloads itself.
const left = "Inspected target navigated or closed"

// js evaluates an expression in the page, and returns its value as text.
func (b *chromium) js(expression string) string {
	b.t.Helper()
	var out struct {
		Result struct{ Value any }
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &out)
	return fmt.Sprint(out.Result.Value)
}

// open loads a page, and returns its text once it contains a word.
func (b *chromium) open(url, word string) string {
	b.t.Helper()
	b.js(`window.stale = true`)
	b.do("Page.navigate", map[string]any{"url": url}, nil)
	return b.shows(word)
}

// shows returns the text of the page once it contains a word.
func (b *chromium) shows(word string) (text string) {
	b.t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if text = b.js(`document.readyState === 'complete' && !window.stale ? document.body.innerText : ''`); strings.Contains(text, word) {
			return text
		}
	}
	b.t.Fatalf("the page does not show %q: %s", word, text)
	return ""
}

// authenticator adds a virtual authenticator that verifies its person.
func (b *chromium) authenticator() {
	b.t.Helper()
	b.do("WebAuthn.enable", nil, nil)
	b.do("WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{"protocol": "ctap2", "transport": "internal", "hasResidentKey": true,
		"hasUserVerification": true, "isUserVerified": true, "automaticPresenceSimulation": true}}, nil)
}
