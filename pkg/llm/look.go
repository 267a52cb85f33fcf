package llm

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// labelUserFile is the data class of files that a caller brings along.
const labelUserFile = "user_file"

// files are the types of parts that bring a file, in the three APIs.
var files = map[string]bool{"image_url": true, "input_audio": true, "file": true, "input_image": true, "input_file": true, "image": true, "document": true}

// telling are the members of a message, or of a part of one, that say what it
// brings. The lists under the last two hold parts, those of a tool's result too.
var telling = []string{"type", "content", "output"}

const (
	isType  = 0
	nothing = -1
)

// level is an object or a list that look is in.
type level struct {
	list  bool
	tells bool // messages or parts are in the list, or it is one
	named bool // the next text is a member's value, not its name
	some  bool // the list has an element
	at    int  // the member, in telling
	seen  [3]bool
}

// look counts the messages in a list, which is valid JSON, and tells whether any
// part of them brings a file. It reads the list once and leaves texts as they
// are. Two members of one name are refused where they tell what a part brings:
// provider and policy might each believe another one.
func look(field, list string) (messages int64, file bool, err error) {
	var room [16]level
	stack := room[:0]
	for i := 0; i < len(list); i++ {
		var top *level
		if len(stack) > 0 {
			top = &stack[len(stack)-1]
		}
		switch c := list[i]; c {
		case ' ', '\t', '\n', '\r':
			continue
		case '"':
			end := closing(list, i)
			text := list[i : end+1]
			i = end
			switch {
			case top.list:
			case !top.named:
				top.named, top.at = true, member(text)
				if top.tells && top.at != nothing {
					if top.seen[top.at] {
						return 0, false, bad(field, "holds two members %q", telling[top.at])
					}
					top.seen[top.at] = true
				}
			case top.tells && top.at == isType:
				file = file || files[unquote(text)]
			}
		case '{', '[':
			in := level{list: c == '[', at: nothing}
			switch {
			case top == nil:
				in.tells = true
			case top.list:
				in.tells = top.tells && !in.list
			default:
				in.tells = top.tells && top.at > isType && in.list
			}
			if top != nil {
				top.some = true
			}
			stack = append(stack, in)
			continue
		case '}', ']':
			if len(stack) == 1 && top.some {
				messages++
			}
			stack = stack[:len(stack)-1]
			continue
		case ',':
			if len(stack) == 1 {
				messages++
			}
			top.named = false
			continue
		}
		top.some = true
	}
	return messages, file, nil
}

// closing is where the text ends that begins at i.
func closing(s string, i int) int {
	for {
		i += 1 + strings.IndexByte(s[i+1:], '"')
		n := 0
		for s[i-1-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			return i
		}
	}
}

func member(text string) int {
	if len(text) > 64 {
		return nothing
	}
	name := unquote(text)
	return slices.IndexFunc(telling, func(t string) bool { return strings.EqualFold(t, name) })
}

func unquote(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text[1 : len(text)-1]
	}
	return gjson.Parse(text).Str
}
