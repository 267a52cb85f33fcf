package llm

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// labelUserFile is the data class of a request with images, videos or other files.
const labelUserFile = "user_file"

// images lists the types of content parts that contain an image or a video, and files
// the types of content parts that contain another file. The tokens of an image cannot be
// computed from its bytes.
var (
	images = map[string]bool{"image_url": true, "input_image": true, "image": true, "image_file": true, "computer_screenshot": true, "video": true, "video_url": true, "input_video": true}
	files  = map[string]bool{"file": true, "input_file": true, "document": true, "document_url": true, "container_upload": true, "input_audio": true, "audio": true, "audio_url": true}
)

// complete lists the item types that contain their whole content. An item of another
// type may refer to an item that the provider stores; see references.
var complete = map[string]bool{"message": true, "function_call": true, "function_call_output": true, "custom_tool_call": true, "custom_tool_call_output": true, "computer_call_output": true,
	"local_shell_call_output": true, "shell_call_output": true, "apply_patch_call_output": true, "tool_search_output": true, "mcp_approval_response": true}

// subjectReader reads the members of a request that are input for the model: messages,
// an input or a prompt, with their content parts, files and references to stored items.
type subjectReader struct{ *peek }

// subject reads the value of the member with the input for the model: messages, input or
// prompt, depending on the API.
func (p subjectReader) subject() {
	switch c := p.next(); {
	case c == '"':
		p.some, p.a.Messages = len(p.reader.skip()) > 2, 1
	case c == 'n':
		p.reader.skip()
	case c != '[':
		p.refuse("want a list, or text where the API takes it")
	case p.kind == Completions || p.kind == Embeddings:
		p.batch()
	default:
		p.list(func(int) {
			p.a.Messages++
			p.item()
		})
		p.some = p.some || p.a.Messages > 0
	}
}

// batch reads the input of embeddings or the prompt of completions: a list of texts,
// content parts, token numbers, or lists of token numbers. Each text, part and inner
// list counts as one message, and a list that consists of token numbers alone counts as
// one.
func (p subjectReader) batch() {
	tokens := 0
	p.list(func(int) {
		switch p.next() {
		case '"':
			p.a.Messages++
			p.reader.skip()
		case '[':
			p.a.Messages++
			p.list(func(int) { p.reader.skip() })
		case '{':
			p.a.Messages++
			p.content(item)
		default:
			p.reader.skip()
			tokens++
		}
	})
	if p.a.Messages == 0 && tokens > 0 {
		p.a.Messages = 1
	}
	p.some = p.a.Messages > 0
	p.prompts = max(p.a.Messages, 1)
}

// item reads one message, or one item of the input of the Responses API.
func (p subjectReader) item() {
	if p.next() != '{' {
		p.content(item)
		return
	}
	var it itemRead
	own := p.deep + 1 // members at this depth belong to the item; its content parts have members of the same names
	p.object(item, func(k known) bool {
		if p.deep != own {
			return p.part(k)
		}
		return p.itemMember(&it, k.name) || p.part(k)
	}, nil)
	if p.kind == Responses {
		p.references(&it)
	}
}

// itemRead holds the members of an item that determine whether it refers to stored
// items.
type itemRead struct {
	typ, id, approval string
	role, sealed      bool
}

// itemMember records the type and ids of an item, and whether it has a role and
// encrypted content, from one of its members. It reports whether it consumed the value;
// if not, the value has yet to be read as content.
func (p subjectReader) itemMember(it *itemRead, name string) bool {
	switch name {
	case "type":
		from := p.i
		it.typ, _, _ = p.str()
		p.i = from
	case "id":
		it.id, _, _ = p.str()
		return true
	case "approval_request_id":
		it.approval, _, _ = p.str()
		return true
	case "role":
		it.role = p.next() == '"'
	case "encrypted_content":
		it.sealed = p.next() == '"'
	}
	return false
}

// references records the ids of the stored items that an item names: the id of an
// approval request, the id in an item of type item_reference, and the item's own id. The
// item's own id is not recorded if the type is in complete, if the item is a message
// without a type, or if it has encrypted content.
func (p subjectReader) references(it *itemRead) {
	if it.id != "" && !complete[it.typ] && !(it.typ == "" && it.role) && !it.sealed {
		p.refer(it.id)
	}
	if it.approval != "" {
		p.refer(it.approval)
	}
	if it.typ == "item_reference" {
		p.refer(it.id)
	}
}

// refer adds the id of a stored item to the summary, once. It refuses an empty id and
// more than maxRefs ids.
func (p subjectReader) refer(id string) {
	if slices.Contains(p.a.Refs, id) {
		return
	}
	if len(p.a.Refs) == maxRefs || id == "" {
		p.refuse("want the id of a stored item, and at most %d of them", maxRefs)
		return
	}
	p.a.Refs = append(p.a.Refs, id)
}

// content reads content parts: an object, a list of objects, or text.
func (p subjectReader) content(s *shape) {
	p.value(s, p.part)
}

// part reads one member of a message or of a content part. It reports whether it
// consumed the value.
func (p subjectReader) part(k known) bool {
	switch k.name {
	case "type":
		s, _, _ := p.str()
		if images[s] {
			p.a.Images++
		}
		if files[s] {
			p.file(s)
		}
	case "image_url", "video_url":
		p.byMember++
		return false
	case "file_id", "file_url", "file_data", "file", "input_audio", "audio_url":
		if p.next() == 'n' {
			return false
		}
		p.file(k.name)
		return false
	case "tools": // an input item that adds tools
		if c := p.next(); c == '[' {
			p.offers = append(p.offers, offer{member: subject[p.kind], tools: p.tools("")})
			return true
		}
		return false
	default:
		return false
	}
	return true
}

// file records that the request has a file. A file may fill the model's context (Whole),
// except parts of the types input_audio and audio, whose tokens are bounded by their
// bytes.
func (p subjectReader) file(typ string) {
	p.labels = []string{labelUserFile}
	if typ != "input_audio" && typ != "audio" {
		p.a.Whole = true
	}
}

// media lists the members whose string values are files, addresses of files, signatures
// or ciphertext. Their tokens cannot be computed from their bytes, so spoken does not
// count them.
var media = map[string]bool{"data": true, "file_data": true, "url": true, "image_url": true, "video_url": true, "signature": true, "encrypted_content": true}

// spoken adds to p.tokens an upper bound of the tokens in the texts, member names and
// numbers of a value, without the string values of the members in media. In a text, two
// lower-case letters or blanks count as one token, and every other byte counts as one.
// Each digit of a number counts as one; if tokens is set, numbers are token ids, and
// each counts as one.
func (p subjectReader) spoken(raw []byte, tokens bool) {
	file := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			end := closing(raw, i)
			text := raw[i+1 : end]
			i = end
			if next := blank(raw, end+1); next < len(raw) && raw[next] == ':' {
				file = media[string(text)]
			} else if file {
				file = false
				continue
			}
			p.tokens += int64(len(text)) - int64(soft(text)/2)
		case c >= '0' && c <= '9':
			p.tokens++
			for tokens && i+1 < len(raw) && raw[i+1] >= '0' && raw[i+1] <= '9' {
				i++
			}
		}
	}
}

// soft returns the number of lower-case letters and blanks in b. It tests eight bytes at
// a time, since it reads every byte of a prompt.
func soft(b []byte) (n int) {
	const each7f = 0x7f7f7f7f7f7f7f7f
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		low, blank := w&each7f, w^(each1*' ')
		letters := (low + each1*(0x80-'a')) &^ (low + each1*(0x7f-'z')) &^ w
		blanks := ^((blank&each7f + each7f) | blank)
		n += bits.OnesCount64((letters | blanks) & each80)
		b = b[8:]
	}
	for _, c := range b {
		if c >= 'a' && c <= 'z' || c == ' ' {
			n++
		}
	}
	return n
}
