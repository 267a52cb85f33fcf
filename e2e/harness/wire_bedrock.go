package harness

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sort"
	"strings"
)

func (p *Providers) bedrock(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Amzn-Requestid", "amzn-1")
	fail := func(status int, kind, message string) {
		w.Header().Set("X-Amzn-Errortype", kind+":http://internal.amazon.com/coral/")
		jsonOut(w, status, map[string]string{"message": message})
	}
	body, _ := io.ReadAll(r.Body)
	if why := signedV4(r, body); why != "" {
		fail(403, "InvalidSignatureException", why)
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/bedrock/model/"), "/")
	model, verb := parts[0], parts[len(parts)-1]
	n := p.see(r, "bedrock", model, body)
	defer p.finished(r, n)
	if bad := known(body, "messages", "system", "inferenceConfig", "toolConfig", "additionalModelRequestFields", "guardrailConfig", "outputConfig"); bad != "" {
		fail(400, "ValidationException", bad)
		return
	}
	type block struct {
		Text       *string
		Image      *struct{ Format string }
		Document   *struct{ Format, Name string }
		ToolUse    *struct{ ToolUseId, Name string }
		ToolResult *struct {
			ToolUseId string
			Content   []struct{ Text string }
		}
	}
	var q struct {
		Messages []struct {
			Role    string
			Content []block
		}
		OutputConfig struct {
			TextFormat *struct {
				Type      string
				Structure struct{ JSONSchema struct{ Schema string } }
			}
		}
		InferenceConfig struct{ Temperature, TopP *float64 }
		More            struct{ Thinking struct{ Type string } } `json:"additionalModelRequestFields"`
		ToolConfig      struct {
			Tools []struct {
				ToolSpec *struct {
					Name        string
					InputSchema struct{ JSON json.RawMessage }
				}
			}
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "ValidationException", err.Error())
		return
	}
	if strings.Contains(model, "claude-opus-5-5") && (q.InferenceConfig.Temperature != nil || q.InferenceConfig.TopP != nil || q.More.Thinking.Type == "enabled") {
		fail(400, "ValidationException", "The model returned the following errors: this model takes no temperature, top_p or budget of thinking")
		return
	}
	a := &ask{model: model, stream: verb == "converse-stream"}
	if f := q.OutputConfig.TextFormat; f != nil {
		if a.schema = f.Type == "json_schema" && json.Valid([]byte(f.Structure.JSONSchema.Schema)); !a.schema {
			fail(400, "ValidationException", "outputConfig.textFormat: not a JSON schema")
			return
		}
	}
	for _, t := range q.ToolConfig.Tools {
		if t.ToolSpec != nil {
			a.tools = append(a.tools, t.ToolSpec.Name)
		}
	}
	calls, files := map[string]bool{}, map[string]bool{}
	for _, m := range q.Messages {
		if m.Role == "user" {
			a.last, a.images, a.results = "", 0, nil
		}
		for _, b := range m.Content {
			switch {
			case b.ToolUse != nil:
				calls[b.ToolUse.ToolUseId] = true
			case b.ToolResult != nil:
				if !calls[b.ToolResult.ToolUseId] {
					fail(400, "ValidationException", "The toolResult blocks contain an id without a toolUse")
					return
				}
				text := ""
				for _, c := range b.ToolResult.Content {
					text += c.Text
				}
				a.results = append(a.results, text)
			case b.Image != nil:
				a.images++
			case b.Document != nil:
				if !documentName.MatchString(b.Document.Name) || files[b.Document.Name] {
					fail(400, "ValidationException", "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, parentheses, and square brackets, and must be unique: "+b.Document.Name)
					return
				}
				files[b.Document.Name] = true
			case b.Text != nil && m.Role == "user":
				a.last += *b.Text
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		kind := map[int]string{429: "ThrottlingException", 500: "InternalServerException", 529: "ServiceUnavailableException", 404: "ResourceNotFoundException"}[status]
		if status == 529 {
			status = 503
		}
		fail(status, kind, "Bedrock says: "+kind)
	}) {
		return
	}
	re := a.reply()
	use := map[string]int{"inputTokens": re.in - 5, "cacheReadInputTokens": 5, "outputTokens": re.out, "totalTokens": re.in + re.out}
	stop := "end_turn"
	if len(re.calls) > 0 {
		stop = "tool_use"
	}
	if !a.stream {
		content := []any{}
		if re.think != "" {
			content = append(content, map[string]any{"reasoningContent": map[string]any{"reasoningText": map[string]string{"text": re.think, "signature": "sig-bedrock"}}})
		}
		if len(re.words) > 0 {
			content = append(content, map[string]string{"text": strings.Join(re.words, "")})
		}
		for i, c := range re.calls {
			content = append(content, map[string]any{"toolUse": map[string]any{"toolUseId": fmt.Sprint("tooluse_", i+1), "name": c, "input": json.RawMessage(toolArgs)}})
		}
		jsonOut(w, 200, map[string]any{"output": map[string]any{"message": map[string]any{"role": "assistant", "content": content}}, "stopReason": stop, "usage": use, "metrics": map[string]int{"latencyMs": 12}})
		return
	}
	w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	send := func(name string, doc any) {
		b, _ := json.Marshal(doc)
		_, _ = w.Write(awsEvent(map[string]string{":message-type": "event", ":event-type": name, ":content-type": "application/json"}, b))
		w.(http.Flusher).Flush()
	}
	send("messageStart", map[string]string{"role": "assistant"})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	index := 0
	if re.think != "" {
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"reasoningContent": map[string]string{"text": re.think}}})
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"reasoningContent": map[string]string{"signature": "sig-bedrock"}}})
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	s := sseOut{w, r}
	for i, word := range re.words {
		if a.behave() == "garbage" && i == 2 {
			_, _ = w.Write(append(awsEvent(map[string]string{":message-type": "event", ":event-type": "contentBlockDelta"}, []byte("{}"))[:20], bytes.Repeat([]byte{7}, 40)...))
			return
		}
		if s.stopAt(a, i, func() {
			_, _ = w.Write(awsEvent(map[string]string{":message-type": "exception", ":exception-type": "modelStreamErrorException"}, []byte(`{"message":"The model stream failed"}`)))
			w.(http.Flusher).Flush()
		}) {
			return
		}
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]string{"text": word}})
	}
	if len(re.words) > 0 {
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	for i, c := range re.calls {
		send("contentBlockStart", map[string]any{"contentBlockIndex": index, "start": map[string]any{"toolUse": map[string]string{"toolUseId": fmt.Sprint("tooluse_", i+1), "name": c}}})
		for _, part := range []string{toolArgs[:4], toolArgs[4:]} {
			send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"toolUse": map[string]string{"input": part}}})
		}
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	send("messageStop", map[string]string{"stopReason": stop})
	send("metadata", map[string]any{"usage": use, "metrics": map[string]int{"latencyMs": 12}})
}

// awsEvent encodes one message of application/vnd.amazon.eventstream.
func awsEvent(headers map[string]string, payload []byte) []byte {
	var h bytes.Buffer
	for _, k := range slices.Sorted(mapsKeys(headers)) {
		h.WriteByte(byte(len(k)))
		h.WriteString(k)
		h.WriteByte(7) // header value type: string
		_ = binary.Write(&h, binary.BigEndian, uint16(len(headers[k])))
		h.WriteString(headers[k])
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(12+h.Len()+len(payload)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Len()))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, h.Bytes()...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func mapsKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// signedV4 verifies a request's AWS Signature Version 4 (AWS General Reference, "Signing
// AWS API requests"). It returns a description of the first fault, or "" if the
// signature is valid.
func signedV4(r *http.Request, body []byte) string {
	var k struct {
		ID     string `json:"access_key_id"`
		Secret string `json:"secret_access_key"`
	}
	_ = json.Unmarshal([]byte(bedrockKey), &k)
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return "Missing Authentication Token"
	}
	f := map[string]string{}
	for part := range strings.SplitSeq(auth, ", ") {
		name, v, _ := strings.Cut(part, "=")
		f[name] = v
	}
	scope := strings.SplitN(f["Credential"], "/", 2)
	if scope[0] != k.ID || len(scope) != 2 || !strings.HasSuffix(scope[1], "/us-east-1/bedrock/aws4_request") {
		return "The security token included in the request is invalid: " + f["Credential"]
	}
	names := strings.Split(f["SignedHeaders"], ";")
	sort.Strings(names)
	var canonical strings.Builder
	path := strings.ReplaceAll(r.URL.EscapedPath(), "%", "%25")
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, path, r.URL.RawQuery)
	for _, n := range names {
		v := r.Header.Get(n)
		switch n {
		case "host":
			v = r.Host
		case "content-length":
			v = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&canonical, "%s:%s\n", n, strings.TrimSpace(v))
	}
	sum := sha256.Sum256(body)
	fmt.Fprintf(&canonical, "\n%s\n%s", strings.Join(names, ";"), hex.EncodeToString(sum[:]))
	hashed := sha256.Sum256([]byte(canonical.String()))
	toSign := "AWS4-HMAC-SHA256\n" + r.Header.Get("X-Amz-Date") + "\n" + scope[1] + "\n" + hex.EncodeToString(hashed[:])
	mac := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(s))
		return h.Sum(nil)
	}
	key := []byte("AWS4" + k.Secret)
	for _, s := range strings.Split(scope[1], "/") {
		key = mac(key, s)
	}
	if want := hex.EncodeToString(mac(key, toSign)); want != f["Signature"] {
		return "The request signature we calculated does not match the signature you provided. Canonical: " + canonical.String()
	}
	return ""
}

var documentName = regexp.MustCompile(`^[A-Za-z0-9()\[\]-]+( [A-Za-z0-9()\[\]-]+)*$`)
