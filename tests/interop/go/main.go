// A producer and a push consumer of the Go client (apache/rocketmq-client-go) that check each other.
//
// Messages are sent synchronously, asynchronously and one-way; a consumer in cluster mode that asks for
// two of three tags must get each of these exactly once, as it was sent, and none of the third. More are sent
// while it waits. A second consumer of the same group must then start where the first ended.
//
// It prints one JSON object; its exit status is 0 only if there are no problems. It ends by itself.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	expression = "TagA || TagC"
	unwanted   = "TagB"

	sendTimeout = 10 * time.Second
	grace       = 1500 * time.Millisecond // for messages that must not come
	largeBody   = 10000                   // above 4096 bytes the client compresses
	maxProblems = 20
)

var (
	namesrv = flag.String("namesrv", "127.0.0.1:9876", "name server HOST:PORT")
	topic   = flag.String("topic", "GoTopic", "topic, made by the broker with the first message")
	group   = flag.String("group", "GoGroup", "consumer group")
	count   = flag.Int("count", 60, "messages of each kind of sending")
	timeout = flag.Duration("timeout", 60*time.Second, "the whole run, at most")
)

var tags = [...]string{"TagA", unwanted, "TagC"}

// message is one that was sent, and what the broker answered (nil for one-way).
type message struct {
	key, tag string
	body     []byte
	answer   *primitive.SendResult
}

// run is everything that is known so far; callbacks of the client change it.
type run struct {
	mu       sync.Mutex
	began    time.Time
	sent     map[string]*message // by key
	kinds    map[string]int
	came     map[string]int
	problems []string
}

func main() {
	flag.Parse()
	rlog.SetLogLevel("error")
	r := &run{began: time.Now(), sent: map[string]*message{}, kinds: map[string]int{}, came: map[string]int{}}
	time.AfterFunc(*timeout, func() {
		r.problem("not done within %v", *timeout)
		r.end()
	})
	r.all()
	r.end()
}

func (r *run) all() {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{*namesrv}),
		producer.WithGroupName(*group+"Producer"),
		producer.WithInstanceName(*group+"Producer"),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithRetry(2),
	)
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		r.problem("producer: %v", err)
		return
	}
	defer p.Shutdown()

	r.sendSync(p, "sync")
	r.sendAsync(p)
	r.sendOneWay(p)
	if r.failed() {
		return
	}
	r.consume("First", func() {
		r.waitForAll()
		r.sendSync(p, "live") // while pulls are parked at the broker
	})
	if r.failed() {
		return
	}
	// What came stays in r.came, so anything that comes a second time is a problem.
	r.sendSync(p, "later")
	r.consume("Second", func() {})
}

// ---------------------------------------------------------------- sending

func (r *run) next(kind string, number int) (*message, *primitive.Message) {
	m := &message{key: fmt.Sprintf("%s-%d", kind, number), tag: tags[number%len(tags)]}
	m.body = []byte(fmt.Sprintf("body of %s, äöü ", m.key))
	if number%10 == 9 {
		m.body = bytes.Repeat(m.body, largeBody/len(m.body))
	}
	out := primitive.NewMessage(*topic, append([]byte(nil), m.body...))
	out.WithTag(m.tag)
	out.WithKeys([]string{m.key, "kind-" + kind})
	out.WithProperty("number", fmt.Sprint(number))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[m.key] = m
	r.kinds[kind]++
	return m, out
}

func (r *run) answered(m *message, answer *primitive.SendResult, err error) {
	if err != nil {
		r.problem("%s: %v", m.key, err)
		return
	}
	if answer.Status != primitive.SendOK || answer.MsgID == "" || answer.OffsetMsgID == "" {
		r.problem("%s: answer %v", m.key, answer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.answer = answer
}

func (r *run) sendSync(p rocketmq.Producer, kind string) {
	for n := 0; n < *count; n++ {
		m, out := r.next(kind, n)
		answer, err := p.SendSync(context.Background(), out)
		r.answered(m, answer, err)
		if err != nil {
			return
		}
	}
}

func (r *run) sendAsync(p rocketmq.Producer) {
	var open sync.WaitGroup
	for n := 0; n < *count; n++ {
		m, out := r.next("async", n)
		open.Add(1)
		err := p.SendAsync(context.Background(), func(_ context.Context, answer *primitive.SendResult, err error) {
			r.answered(m, answer, err)
			open.Done()
		}, out)
		if err != nil {
			r.problem("%s: %v", m.key, err)
			return
		}
	}
	open.Wait() // main's timer bounds it
}

func (r *run) sendOneWay(p rocketmq.Producer) {
	for n := 0; n < *count; n++ {
		m, out := r.next("oneway", n)
		if err := p.SendOneWay(context.Background(), out); err != nil {
			r.problem("%s: %v", m.key, err)
			return
		}
	}
}

// ---------------------------------------------------------------- consuming

// consume starts a consumer, does what is asked, and stops it when everything came and nothing else follows.
func (r *run) consume(instance string, meanwhile func()) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithInstance(*group+instance),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeMessageBatchMaxSize(8),
	)
	if err == nil {
		err = c.Subscribe(*topic, consumer.MessageSelector{Type: consumer.TAG, Expression: expression}, r.received)
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		r.problem("consumer %s: %v", instance, err)
		return
	}
	meanwhile()
	r.waitForAll()
	time.Sleep(grace)
	if err := c.Shutdown(); err != nil {
		r.problem("consumer %s: %v", instance, err)
	}
}

func (r *run) received(_ context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	for _, got := range all {
		r.check(got)
	}
	return consumer.ConsumeSuccess, nil
}

func (r *run) check(got *primitive.MessageExt) {
	key, _, _ := strings.Cut(got.GetKeys(), " ")
	r.mu.Lock()
	m := r.sent[key]
	r.came[key]++
	times := r.came[key]
	r.mu.Unlock()
	if m == nil {
		r.problem("came, but was never sent: %v", got)
		return
	}
	kind, number, _ := strings.Cut(key, "-")
	same := func(what string, got, want any) {
		if got != want {
			r.problem("%s: %s is %v, not %v", key, what, got, want)
		}
	}
	same("number of deliveries", times, 1)
	same("topic", got.Topic, *topic)
	same("tag", got.GetTags(), m.tag)
	same("keys", got.GetKeys(), key+" kind-"+kind)
	same("property number", got.GetProperty("number"), number)
	same("reconsumeTimes", got.ReconsumeTimes, int32(0))
	if m.tag == unwanted {
		r.problem("%s came with %s, which was not asked for", key, m.tag)
	}
	if !bytes.Equal(got.Body, m.body) {
		r.problem("%s: a body of %d bytes, not the %d that were sent", key, len(got.Body), len(m.body))
	}
	r.mu.Lock()
	answer := m.answer
	r.mu.Unlock()
	if answer == nil {
		return // one-way, or delivered before the answer to the send came back
	}
	same("message id", got.MsgId, answer.MsgID)
	same("offset message id", got.OffsetMsgId, answer.OffsetMsgID)
	same("queue", got.Queue.QueueId, answer.MessageQueue.QueueId)
	same("queue offset", got.QueueOffset, answer.QueueOffset)
}

// waitForAll returns when everything asked for has come, or something went wrong; main's timer bounds it.
func (r *run) waitForAll() {
	for len(r.missing()) > 0 && !r.failed() {
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *run) missing() (keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, m := range r.sent {
		if m.tag != unwanted && r.came[key] == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// ---------------------------------------------------------------- the end

func (r *run) problem(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fmt.Sprintf(format, a...))
	}
}

func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.problems) > 0
}

func (r *run) end() {
	missing := r.missing()
	r.mu.Lock() // and kept: nothing changes any more
	ok := len(r.problems) == 0 && len(missing) == 0
	out, _ := json.Marshal(map[string]any{
		"ok": ok, "sent": r.kinds, "received": len(r.came), "missing": missing,
		"problems": r.problems, "seconds": time.Since(r.began).Seconds(),
	})
	fmt.Println(string(out))
	if !ok {
		os.Exit(1)
	}
	os.Exit(0)
}
