// A browser starts no worker for a page that was opened from the disk. There the search runs in a hidden frame
// of the page instead. The theme looks for the name IFrameWorker, and loads the index as a script.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    #inside = null
    #waiting = [] // messages that came before the script was there

    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.onload = () => {
        frame.onload = null
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.src = new URL(url, document.baseURI)
        script.onload = () => {
          this.#inside = inside
          this.#waiting.splice(0).forEach((data) => this.postMessage(data))
        }
        inside.document.body.append(script)
      }
      document.body.append(frame)
    }

    postMessage(data) {
      if (this.#inside) this.#inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.#waiting.push(data)
    }
  }
}
