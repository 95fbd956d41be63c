package main

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"net"
	"sort"
	"strconv"
	"strings"
	"time"
)

// ---------------------------------------------------------------- connections

func connect(timeout time.Duration) (net.Conn, error) {
	if *useTLS {
		return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, "tcp", *broker, &tls.Config{InsecureSkipVerify: true})
	}
	return net.DialTimeout("tcp", *broker, timeout)
}

// ---------------------------------------------------------------- shapes of messages

const (
	variants   = 4 // of the messages of a shape: their tags and some values differ
	prepared   = "4"
	commit     = "8"
	delayLevel = "1"
)

// canBatch: Java has no batches of the others.
func canBatch() bool { return *shape == "plain" || *shape == "rich" }

// properties of the messages that go to a place, as they are on the wire.
func properties(place, variant int) string {
	list := []string{"WAIT\x01true"}
	if *keys {
		list = []string{"UNIQ_KEY\x017F0000014E2073D1" + markUniq, "WAIT\x01true"}
	}
	number := strconv.Itoa(variant)
	switch *shape {
	case "rich":
		list = append([]string{"KEYS\x01order-" + markUniq, "region\x01区域-" + number}, list...)
		list = append(list, "customer\x01c-"+markUniq, "amount\x01"+number+"2.50", "trace\x01t-"+markUniq, "TAGS\x01tag"+number)
	case "lmq":
		list = append(list, "INNER_MULTI_DISPATCH\x01"+lightQueue(place)+","+lightQueueOfAll())
	case "transaction":
		list = append(list, "TRAN_MSG\x01true", "PGROUP\x01"+*group)
	case "delay":
		list = append(list, "DELAY\x01"+delayLevel)
	}
	return strings.Join(list, "\x02")
}

// Each message of shape lmq is in the light queue of its place and in one that has all.
func lightQueue(place int) string { return fmt.Sprintf("%%LMQ%%%s-%d", topicOf(place), queueOf(place)) }

func lightQueueOfAll() string { return "%LMQ%" + *topic + "-all" }

// source: the topic and queue that the messages of a place are read from.
func source(place int) []kv {
	if *shape == "lmq" {
		return []kv{{"topic", lightQueue(place)}, {"queueId", "0"}}
	}
	return []kv{{"topic", topicOf(place)}, {"queueId", strconv.Itoa(queueOf(place))}}
}

// ---------------------------------------------------------------- requests

const (
	markBorn = "1777777777777"
	markUniq = "ABCDEFABCDEFABCD"
	markOff  = "876543210987654"
	markSign = "SIGNATURESIGNATURESIGNATURE="
)

// template: one encoded request and where its changing parts lie.
type template struct {
	f      []byte
	opaque int
	at     spots
	mac    hash.Hash // nil if nothing is signed
	text   []byte    // what is signed: the values in the order of their names, then the body
	textAt spots
	sign   int
}

// spots: where the time of birth, ids of 16 hex digits and an offset lie.
type spots struct{ born, ids, offset []int }

func spotsOf(b []byte) spots {
	all := func(mark string) (found []int) {
		for p := 0; ; {
			i := find(b, mark, p)
			if i < 0 {
				return
			}
			found = append(found, i)
			p = i + len(mark)
		}
	}
	return spots{all(markBorn), all(markUniq), all(markOff)}
}

// set writes the value as the offset, and for ids the value and those that follow it.
func (s *spots) set(b []byte, born int64, value uint64) {
	for _, p := range s.born {
		putDec(b[p:p+len(markBorn)], uint64(born))
	}
	for i, p := range s.ids {
		putHex(b[p:p+len(markUniq)], value+uint64(i))
	}
	for _, p := range s.offset {
		putDec(b[p:p+len(markOff)], value)
	}
}

func newTemplate(code int, ext []kv, body []byte) *template {
	t := &template{}
	if *accessKey != "" {
		ext = append([]kv{{"AccessKey", *accessKey}}, ext...)
		t.mac = hmac.New(sha1.New, []byte(*secretKey))
		byName := append([]kv(nil), ext...)
		sort.Slice(byName, func(i, j int) bool { return byName[i].k < byName[j].k })
		for _, e := range byName {
			t.text = append(t.text, e.v...)
		}
		t.text = append(t.text, body...)
		t.textAt = spotsOf(t.text)
		ext = append(ext, kv{"Signature", markSign})
	}
	t.f = frame(encodeHeader(code, opaqueBase, ext), body)
	t.at = spotsOf(t.f)
	t.opaque = 8 + 5
	if *header == "json" {
		t.opaque = find(t.f, `"opaque":`, 8) + 9
	}
	t.sign = find(t.f, markSign, 8)
	return t
}

// write appends the request to out, with its own number, time, value (see set) and signature.
func (t *template) write(out []byte, op uint32, value uint64) []byte {
	o := len(out)
	out = append(out, t.f...)
	b := out[o:]
	if *header == "rocketmq" {
		binary.BigEndian.PutUint32(b[t.opaque:], op)
	} else {
		putDec(b[t.opaque:t.opaque+10], uint64(op))
	}
	born := nowMs.Load()
	t.at.set(b, born, value)
	if t.mac != nil {
		t.textAt.set(t.text, born, value)
		t.mac.Reset()
		t.mac.Write(t.text)
		base64.StdEncoding.Encode(b[t.sign:], t.mac.Sum(nil))
	}
	return out
}

func find(f []byte, s string, from int) int {
	i := strings.Index(string(f[from:]), s)
	if i < 0 {
		return -1
	}
	return from + i
}

func makeBody() []byte {
	b := make([]byte, *bodySize)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[(i*7+i/36)%36]
	}
	if len(b) >= 16 {
		copy(b, markUniq)
	}
	return b
}

// sendTemplate: with isBatch each message of the batch is of the next variant.
func sendTemplate(place, variant int, isBatch bool) *template {
	body := makeBody()
	code, flagBatch, sysFlag, header := codeSendV2, "false", "0", properties(place, variant)
	if *shape == "transaction" {
		sysFlag = prepared
	}
	if isBatch {
		code, flagBatch, header = codeSendBatch, "true", "WAIT\x01true"
		var b []byte
		for i := 0; i < *batchN; i++ {
			props := properties(place, (variant+i)%variants)
			b = binary.BigEndian.AppendUint32(b, uint32(4+4+4+4+4+len(body)+2+len(props)))
			b = append(b, make([]byte, 12)...)
			b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
			b = append(b, body...)
			b = binary.BigEndian.AppendUint16(b, uint16(len(props)))
			b = append(b, props...)
		}
		body = b
	}
	ext := []kv{{"a", *group}, {"b", topicOf(place)}, {"c", "TBW102"}, {"d", "4"}, {"e", strconv.Itoa(queueOf(place))},
		{"f", sysFlag}, {"g", markBorn}, {"h", "0"}, {"i", header}, {"j", "0"}, {"k", "false"}, {"m", flagBatch}}
	return newTemplate(code, ext, body)
}

// sendTemplates: one for each place, and then those of the next variant where messages differ.
func sendTemplates(isBatch bool) (list []*template) {
	for variant := 0; variant < variants; variant++ {
		for place := 0; place < places(); place++ {
			list = append(list, sendTemplate(place, variant, isBatch))
		}
		if *shape != "rich" {
			return
		}
	}
	return
}

// endTemplate: the request that commits a message, by the answer to its send.
func endTemplate(place int, answer map[string]string) (*template, error) {
	id := answer["msgId"]
	if len(id) < 16 || answer["transactionId"] == "" {
		return nil, fmt.Errorf("response lacks msgId or transactionId: %v", answer)
	}
	physical, err := strconv.ParseInt(id[len(id)-16:], 16, 64)
	if err != nil {
		return nil, err
	}
	return newTemplate(codeEndTransaction, []kv{{"topic", topicOf(place)}, {"producerGroup", *group},
		{"tranStateTableOffset", answer["queueOffset"]}, {"commitLogOffset", strconv.FormatInt(physical, 10)},
		{"commitOrRollback", commit}, {"fromTransactionCheck", "false"}, {"msgId", answer["transactionId"]},
		{"transactionId", answer["transactionId"]}}, nil), nil
}

// pullExt: the fields of a pull with the expression.
func pullExt(place int, offset string) []kv {
	held, suspend := 0, "1000"
	if *mode == "tail" {
		held, suspend = 2, "15000" // it may be held
	}
	if *subscribe { // the broker knows the expression by the heartbeat
		return pullFields(place, offset, held, suspend, *exprType)
	}
	return append(pullFields(place, offset, held|4, suspend, *exprType), kv{"subscription", *expr})
}

// readExt: the fields of a pull of whatever is there.
func readExt(place int, offset int64) []kv {
	return append(pullFields(place, strconv.FormatInt(offset, 10), 4, "1000", "TAG"), kv{"subscription", "*"})
}

func pullFields(place int, offset string, sysFlag int, suspend, exprType string) []kv {
	return append(source(place), []kv{{"consumerGroup", *group}, {"queueOffset", offset},
		{"maxMsgNums", strconv.Itoa(*maxNums)}, {"sysFlag", strconv.Itoa(sysFlag)}, {"commitOffset", "0"},
		{"suspendTimeoutMillis", suspend}, {"subVersion", "0"}, {"expressionType", exprType}}...)
}

// heartbeat: a consumer of the topic with the expression, for as long as its connection lasts.
func heartbeat() []byte {
	subscription := map[string]any{"topic": *topic, "subString": *expr, "expressionType": *exprType,
		"classFilterMode": false, "tagsSet": []string{}, "codeSet": []int{}, "subVersion": time.Now().UnixMilli()}
	consumer := map[string]any{"groupName": *group, "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING",
		"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": []any{subscription}, "unitMode": false}
	body, _ := json.Marshal(map[string]any{"clientID": "mqload@1", "producerDataSet": []any{}, "consumerDataSet": []any{consumer}})
	return body
}
