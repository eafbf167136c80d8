// Drives the page in a real browser against a moving fleet. The Go test
// beside the handlers starts the fleet and this:
//   node page.mjs PAGE-URL CONTROL-URL GPUS [SCREENSHOT-FOLDER]
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import assert from 'node:assert/strict'
import { chromium } from 'playwright-core'

const [url, control, count, shots] = process.argv.slice(2)
const gpus = Number(count)
const tell = async path => {
  const r = await fetch(control + path, { method: 'POST' })
  assert.equal(r.status, 200, `${path}: ${r.status}`)
  return r.text()
}
const profile = await mkdtemp(join(tmpdir(), 'evenkeel-page-'))
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  viewport: { width: 1280, height: 800 }, colorScheme: 'dark',
})
let checks = 0
const complaints = []
/** words is an element's text with plain spaces. */
const words = async (page, selector) => (await page.textContent(selector)).replace(/[\u00a0\u2009]/g, ' ')
const check = async (what, fn) => {
  try {
    await fn()
    checks++
    console.log('ok   ' + what)
  } catch (e) {
    console.log('FAIL ' + what)
    throw e
  }
}
const shot = async (page, name) => { if (shots) await page.screenshot({ path: join(shots, `${gpus}-${name}.png`) }) }
/** Counts cells on the canvas by the places that the page itself cannot move: pixels that are not background. */
const painted = page => page.evaluate(() => {
  const c = document.querySelector('.map canvas')
  const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data
  let n = 0
  for (let i = 3; i < data.length; i += 4) if (data[i] > 250) n++
  return n
})

try {
  const page = browser.pages()[0] ?? await browser.newPage()
  page.on('console', m => { // The hint on reading the canvas back is about this script.
    if ((m.type() === 'error' || m.type() === 'warning') && !m.text().includes('willReadFrequently')) complaints.push(m.text()) })
  page.on('pageerror', e => complaints.push(String(e)))
  await page.goto(url)
  await page.waitForSelector(gpus ? '.map canvas' : '.start')

  if (gpus === 0) {
    await check('an empty fleet says how to start an exporter', async () => {
      assert.match(await page.textContent('.start'), /evenkeel-node export/)
      assert.match(await page.textContent('.side'), /No decision yet/)
    })
    await shot(page, 'dark')
  } else {
    await check('the sentence counts the fleet', async () => {
      await page.waitForSelector('.link.live')
      assert.ok((await page.textContent('.top .state')).replace(/\u2009/g, '').includes(gpus === 1 ? '1 GPU on 1 node ' : `${gpus} GPUs on ${Math.ceil(gpus / 8)} nodes`), await page.textContent('.top .state'))
    })
    await check('the legend accounts for every GPU', async () => {
      const sum = await page.$$eval('.key:not([title^="The power limit"]):not([title^="The device or its driver holds"]) b', list => list.reduce((n, b) => n + Number(b.textContent.replace(/\D/g, '')), 0))
      assert.equal(sum, gpus)
    })
    await check('the heat map shows every GPU, each under its own point', async () => {
      const box = await page.locator('.map canvas').boundingBox()
      const cell = Number(await page.evaluate(() => document.querySelector('.map').dataset.cell))
      assert.ok(cell >= 4, `cell ${cell}`)
      assert.ok(await painted(page) >= gpus * (cell - 1) ** 2, 'fewer pixels than cells need')
      await page.focus('.map canvas')
      const seen = new Set()
      await page.keyboard.press('Home')
      seen.add(await page.textContent('#map-cell'))
      for (let i = 1; i < Math.min(8, gpus); i++) {
        await page.keyboard.press('ArrowRight')
        seen.add(await page.textContent('#map-cell'))
      }
      assert.ok(seen.size >= Math.min(4, gpus), `arrow keys reached ${seen.size} GPUs`)
      await page.mouse.move(box.x + cell / 2 + 4, box.y + box.height - cell / 2 - 4)
      await page.waitForSelector('.card')
      await page.keyboard.press('Escape')
    })
    if (gpus > 16) await check('lost, hung and unknown have a letter and a count', async () => {
      for (const kind of ['lost', 'hung', 'unknown']) assert.match(await page.textContent('.legend'), new RegExp(kind + '1'))
    })
    await check('a signal is chosen and the table follows', async () => {
      await page.getByLabel('Power').check()
      assert.match(await page.textContent('.closest caption'), /Closest to their limit/)
      await page.getByLabel('Headroom').check()
      assert.match(await page.textContent('.closest caption'), /Closest to slowdown/)
    })
    await check('the legend points out where its GPUs are', async () => {
      const all = await painted(page)
      // Held by its title: counts change and may hold the same digits.
      const title = await page.locator('.key:enabled[title*="25"]').first().getAttribute('title')
      const key = page.locator(`.key[title="${title}"]`)
      await key.click()
      await page.mouse.move(2, 2)
      await page.waitForTimeout(1200)
      assert.equal(await key.getAttribute('aria-pressed'), 'true')
      if (gpus > 8) assert.ok(await painted(page) < 0.8 * all, 'nothing is dimmed')
      await key.click()
    })
    await page.mouse.move(2, 2)
    await page.waitForTimeout(1500)
    await shot(page, 'dark')
    await page.emulateMedia({ colorScheme: 'light' })
    await page.waitForTimeout(300)
    await shot(page, 'light')
    await page.emulateMedia({ colorScheme: 'dark' })

    let id = ''
    await check('a decision appears live', async () => {
      const before = await page.locator('.decisions li').count()
      id = await tell('/overheat')
      await page.waitForFunction(n => document.querySelectorAll('.decisions li').length > n || document.querySelectorAll('.decisions li').length >= 200, before, { timeout: 8000 })
      await page.waitForSelector(`.decisions a[href="#/decision/${id}"]`, { timeout: 8000 })
    })
    await check('selecting it shows why, why this, why not, did it help', async () => {
      await page.click(`.decisions a[href="#/decision/${id}"]`)
      await page.waitForSelector('.decision h3')
      const heads = await page.$$eval('.decision h3', l => l.map(h => h.textContent))
      assert.deepEqual(heads, ['Why', 'Why this', 'Why not the others', 'Did it help'])
      const text = await words(page, '.decision')
      for (const part of ['mark 5 °C', 'aim 9 °C', 'agrees', 'Predicted', 'lease of 10 min', 'not worth', 'k8s:vision/Job/']) assert.ok(text.includes(part), `${part} is missing in ${text}`)
    })
    await check('the chart shows the GPU before and after', async () => {
      await page.waitForSelector('.decision .u-over')
      assert.equal(await page.locator('.decision .chart').count(), 3) // headroom, temperature, power
    })
    await check('the link to a decision can be sent', async () => {
      const other = await browser.newPage()
      await other.goto(`${url}/#/decision/${id}`)
      await other.waitForSelector('.decision h3')
      await other.close()
    })
    await page.waitForTimeout(shots ? 12000 : 500)
    await shot(page, 'decision-dark')
    await page.emulateMedia({ colorScheme: 'light' })
    await page.waitForTimeout(300)
    await shot(page, 'decision-light')
    if (shots) {
      await page.locator('.side').evaluate(e => e.scrollTo(0, 9999))
      await shot(page, 'decision-end-light')
    }
    await page.emulateMedia({ colorScheme: 'dark' })
    await check('an older decision is known to have helped', async () => {
      await page.goto(`${url}/#/`)
      const settled = page.locator('.decisions .badge.good, .decisions .badge.past').first()
      if (await settled.count()) {
        await settled.click()
        await page.waitForSelector('.decision h3')
        assert.match(await page.textContent('.decision section:last-child'), /went from/)
        await page.waitForTimeout(500)
        await shot(page, 'decision-settled')
      } else assert.ok(gpus < 8, 'no decision has settled')
    })
    await check('a GPU opens with its values and past', async () => {
      await page.click('.closest tbody a')
      await page.waitForSelector('.gpu .values')
      await page.waitForSelector('.gpu .u-over')
      assert.equal(await page.locator('.gpu .chart').count(), 3)
      await page.waitForTimeout(300)
      await shot(page, 'gpu')
    })
    const uuids = (await (await fetch(`${url}/api/evenkeel/v1/gpus?limit=64`)).json()).items.map(g => g.uuid)
    if (gpus > 16) await check('a GPU opens with what is judged of it, in words', async () => {
      const said = async (place, ...parts) => {
        await page.goto(`${url}/#/gpu/${uuids[place]}`)
        await page.waitForFunction(u => document.querySelector('.gpu .meta')?.textContent.includes(u) && document.querySelectorAll('.verdicts dl > div').length >= 6, uuids[place])
        const text = await words(page, '.verdicts')
        for (const part of parts) assert.ok(text.includes(part), `${place}: ${part} is missing in ${text}`)
        await page.waitForTimeout(shots ? 700 : 0)
        await shot(page, `gpu-${place}`)
        await page.emulateMedia({ colorScheme: 'light' })
        await page.waitForTimeout(shots ? 300 : 0)
        await shot(page, `gpu-${place}-light`)
        await page.emulateMedia({ colorScheme: 'dark' })
      }
      await said(5, 'degraded for 31 min', ': 1 of 18 NVLinks down', 'Xid 74 on NVLink 7', 'links down that should be up', '17 of 18 links up', 'keeps up: storage keeps up, the CPU keeps up', 'inlet 24.5 °C')
      await said(6, 'noisy neighbour for 4 min', ': others share it and it is never free, 34 %', 'with pod-99, pod-100')
      await said(10, 'nvlink for 9', ': its NVLinks are full, 97 %', 'storage is stalled', 'most of it for nvme1n1')
      await said(11, 'idle for 22 min', ': finished, still held', 'no activity for 22 min')
      await said(13, 'not known', 'no SM activity is read')
      await said(9, 'hung', 'driver call does not return')
    })
    await check('alerts are listed where rules are evaluated', async () => {
      await page.goto(`${url}/#/`)
      await page.waitForSelector('.decisions, .side .empty')
      if (gpus !== 32) return assert.equal(await page.locator('.alerts').count(), 0)
      await page.waitForSelector('.alerts li')
      const text = await words(page, '.alerts')
      for (const part of ['2 firing, 1 critical, 1 pending', 'critical', 'GPU gpu-a01-01/3 is gone from', 'runbook docs/runbooks/GPUMissing.md', 'warning, pending', 'GPUNodeClockSkew, since']) assert.ok(text.includes(part), `${part} is missing in ${text}`)
      assert.ok(!text.includes('Watchdog'))
      assert.match(await words(page, '.top .state'), /2 alerts, 1 critical/)
      await shot(page, 'alerts')
    })
    await check('charts reach as far back as there is a past', async () => {
      await page.goto(`${url}/#/gpu/${uuids[0]}`)
      await page.waitForSelector('.gpu .u-over')
      if (gpus !== 32) return assert.equal(await page.locator('.ranges').count(), 0)
      for (const [label, first] of [['6 h', 5.5], ['24 h', 23], ['10 min', 0]]) {
        const [asked] = await Promise.all([page.waitForResponse(r => r.url().includes('/history') && r.url().includes('from=') === first > 0 && r.ok()), page.getByLabel(label).check()])
        const items = (await asked.json()).items
        assert.ok(items.length <= 1000 && (!first || Date.now() - Date.parse(items[0].time) > first * 3600e3), `${label}: ${items.length} items from ${items[0].time}`)
        await page.waitForFunction(() => document.querySelectorAll('.gpu .chart .u-over').length === 3)
        await page.waitForTimeout(shots ? 700 : 0)
        if (shots) await page.locator('.side').evaluate(e => e.scrollTo(0, e.querySelector('.ranges').offsetTop - 60))
        await shot(page, `range-${label.replace(' ', '')}`)
      }
    })
    await check('the leader is asked why nothing happens', async () => {
      await page.goto(`${url}/#/nothing`)
      await page.waitForFunction(() => document.querySelector('.side pre, .side .warn') !== null)
      assert.match(await page.textContent('.side'), /nothing is beyond its mark/)
      await page.waitForSelector('.side pre a[href="#/decision/d-000001"]')
      await page.keyboard.press('Escape')
      await page.waitForSelector('.decisions')
    })
    await check('nodes that fall silent grey out although the stream goes on', async () => {
      await tell('/freeze')
      await page.waitForFunction(() => / 0 of /.test(document.querySelector('.top .state').textContent), null, { timeout: 12000 })
      assert.equal(await page.locator('.link.live').count(), 1)
      assert.match(await page.textContent('.legend'), /stale/)
      await shot(page, 'silent')
      await tell('/thaw')
      await page.waitForFunction(() => !/ 0 of /.test(document.querySelector('.top .state').textContent), null, { timeout: 12000 })
    })
    await check('a stream that stops greys the page out and says since when', async () => {
      const known = complaints.length
      await tell('/stop')
      await page.waitForSelector('.page.stopped .banner', { timeout: 12000 })
      assert.match(await page.textContent('.banner'), /as of \d\d:\d\d:\d\d UTC/)
      assert.notEqual(await page.locator('.map > canvas').evaluate(e => getComputedStyle(e).filter), 'none')
      await page.waitForTimeout(800)
      await shot(page, 'stopped')
      await tell('/start')
      await page.waitForSelector('.page.live', { timeout: 20000 })
      assert.equal(await page.locator('.banner').count(), 0)
      complaints.length = known // failed requests while stopped are the point
    })
    await check('a collector that starts anew is followed without a reload', async () => {
      const known = complaints.length
      await page.evaluate(() => { window.mark = 'kept' })
      const lost = async () => Number(/(\d+) lost/.exec(await words(page, '.top .state'))?.[1] ?? 0)
      const before = await lost()
      await tell('/restart')
      await page.waitForFunction(n => Number(/(\d+) lost/.exec(document.querySelector('.top .state').textContent)?.[1] ?? 0) === n, before + 1, { timeout: 20000 })
      await page.waitForSelector('.page.live')
      await page.goto(`${url}/#/`) // a change of the hash alone
      await page.waitForFunction(() => document.querySelectorAll('.decisions li').length < 12) // those of the process before are gone
      assert.equal(await page.evaluate(() => window.mark), 'kept', 'the page was loaded anew')
      complaints.length = known
    })
    await check('it fits a phone', async () => {
      const phone = await browser.newPage()
      await phone.setViewportSize({ width: 390, height: 844 })
      await phone.goto(url)
      await phone.waitForSelector('.map canvas')
      await phone.waitForTimeout(1200)
      assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'it scrolls sideways')
      await shot(phone, 'phone')
      await phone.goto(`${url}/#/decision/${id}`)
      await phone.waitForSelector('.decision .u-over')
      await phone.waitForTimeout(300)
      assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'the decision scrolls sideways')
      await shot(phone, 'phone-decision')
      await phone.goto(`${url}/#/gpu/${uuids[gpus > 16 ? 5 : 0]}`)
      await phone.waitForSelector('.verdicts dl > div')
      await phone.waitForTimeout(800)
      assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'the GPU scrolls sideways')
      if (shots) await phone.screenshot({ path: join(shots, `${gpus}-phone-gpu.png`), fullPage: true })
      await phone.emulateMedia({ colorScheme: 'light' })
      await phone.goto(`${url}/#/gpu/${uuids[gpus > 16 ? 11 : 0]}`)
      await phone.waitForTimeout(1200)
      if (shots) await phone.screenshot({ path: join(shots, `${gpus}-phone-gpu-light.png`), fullPage: true })
      await phone.close()
    })
  }
  await check('the browser has nothing to complain of', async () => assert.deepEqual(complaints, []))
  console.log(`${checks} passed, 0 failed`)
} finally {
  await browser.close()
  await rm(profile, { recursive: true, force: true })
}
